"""A device plugin for the kubelet of the lab: it offers device ids as one resource, as NVIDIA's plugin does.

Messages are encoded by hand: k8s.io/kubelet's deviceplugin/v1beta1/api.proto has few fields, and a generated
module would need a compiler. The kubelet forgets plugins when it restarts; `register` again then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path

import grpc

from tests.owners.fake_kubelet import field

FOLDER = Path("/var/lib/kubelet/device-plugins")  # the kubelet ignores its --root-dir here
SERVICE = "v1beta1.DevicePlugin"
ENVIRONMENT = "NVIDIA_VISIBLE_DEVICES"


def string_fields(message: bytes, number: int) -> list[str]:
    """The strings of one field; every field of these messages is shorter than 128 bytes or repeated."""
    found, at = [], 0
    while at < len(message):
        tag, length, at = message[at] >> 3, message[at + 1], at + 2
        if length >= 0x80:
            length, at = length & 0x7F | message[at] << 7, at + 1
        if tag == number:
            found.append(message[at : at + length].decode("utf-8", "replace"))
        at += length
    return found


class DevicePlugin:
    def __init__(self, resource: str, ids: Sequence[str]) -> None:
        self.resource = resource
        self.ids = tuple(ids)
        self._name = f"gpuscope-{resource.replace('/', '-').replace('.', '-')}.sock"
        self._stopped = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Opens the plugin's socket, and registers it with the kubelet."""
        (FOLDER / self._name).unlink(missing_ok=True)
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda request, context: b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
            "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(lambda request, context: b""),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(lambda request, context: b""),
        }
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._server.add_insecure_port(f"unix://{FOLDER / self._name}")
        self._server.start()
        with grpc.insecure_channel(f"unix://{FOLDER / 'kubelet.sock'}") as kubelet:
            register = kubelet.unary_unary("/v1beta1.Registration/Register")
            request = field(1, "v1beta1") + field(2, self._name) + field(3, self.resource)
            # A kubelet that has just started does not listen yet.
            register(request, timeout=60, wait_for_ready=True)

    def stop(self) -> None:
        self._stopped.set()
        if self._server is not None:
            self._server.stop(0).wait()
        self._stopped = threading.Event()

    def _list_and_watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        stopped = self._stopped
        yield b"".join(field(1, field(1, one) + field(2, "Healthy")) for one in self.ids)
        while context.is_active() and not stopped.wait(0.5):
            pass

    def _allocate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        answer = b""
        for container in string_fields(request, 1):
            ids = ",".join(string_fields(container.encode(), 1))
            environment = field(1, ENVIRONMENT) + field(2, ids)
            answer += field(1, field(1, environment))
        return answer
