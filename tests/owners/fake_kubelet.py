"""A kubelet of our own: a real gRPC server on a unix socket that answers what the test puts into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: bytes | str | int) -> bytes:
    """One field of a message: bytes and text with their length, numbers as varints."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def devices(resource: str, *ids: str) -> bytes:
    topology = field(3, field(1, field(1, 1)))
    return field(2, field(1, resource) + b"".join(field(2, one) for one in ids) + topology)


def claimed(driver: str, device: str) -> bytes:
    resource = (
        field(1, field(1, "k8s.gpu.nvidia.com/claim=x"))
        + field(2, driver)
        + field(3, "node")
        + field(4, device)
    )
    return field(5, field(2, "claim") + field(3, "ml") + field(4, resource))


def container(name: str, *parts: bytes) -> bytes:
    cpus = field(3, varint(1) + varint(2))  # packed
    return field(3, field(1, name) + b"".join(parts) + cpus)


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    return field(1, field(1, name) + field(2, namespace) + b"".join(containers) + field(9, b"a later field"))


Answer = Callable[[grpc.ServicerContext], bytes]


class FakeKubelet:
    """`answer` may sleep, abort or return any bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[str] = []
        self.answer: Answer = lambda context: b""
        self.by_method: dict[str, Answer] = {}
        self.release = threading.Event()

    def hang(self, context: grpc.ServicerContext) -> bytes:
        self.release.wait(30)
        return b""

    def handle(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method

        def respond(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.asked.append(method)
            return self.by_method.get(method, self.answer)(context)

        return grpc.unary_unary_rpc_method_handler(respond)


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == "/v1.PodResourcesLister/Missing":
            return None
        return self._kubelet.handle(details)


@contextmanager
def running_kubelet(path: Path) -> Iterator[FakeKubelet]:
    kubelet = FakeKubelet(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as workers:
        server = grpc.server(
            workers, handlers=(_Handlers(kubelet),), options=[("grpc.max_send_message_length", -1)]
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield kubelet
        finally:
            kubelet.release.set()
            server.stop(None).wait()
