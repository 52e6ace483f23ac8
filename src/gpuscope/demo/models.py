"""The models of the simulated fleet, which the vendors have, and the identity of each of its GPUs."""

from __future__ import annotations

from gpuscope.base.errors import UsageError
from gpuscope.demo.jobs import as_uuid, digest
from gpuscope.model.demo_model import DemoIdentity, DemoModel, demo_gpus, demo_gpus_of
from gpuscope.model.readings import Uuid


def find_model(text: str) -> tuple[DemoModel, bool]:
    """The model a user named (`h100`, `A100-80-mig`), and whether some of its GPUs are to be split."""
    typed = text.strip().lower().replace(" ", "").replace("_", "-")
    for gpus in demo_gpus().values():
        wanted = gpus.aliases.get(typed, typed)
        model = gpus.models.get(wanted.removesuffix(gpus.split_suffix))
        split = wanted.endswith(gpus.split_suffix)
        if model is not None and (model.profiles or not split):
            return model, split
    names = ", ".join(
        model.key + (f" (or {model.key}{gpus.split_suffix})" if model.profiles else "")
        for gpus in demo_gpus().values()
        for model in gpus.models.values()
    )
    raise UsageError(f"--demo-model: {text!r} is not one of {names}")


def identify(seed: int, node: int, gpu: int, model: DemoModel) -> DemoIdentity:
    """UUID, serial number and PCI address, derived from the seed, in the real formats."""
    salt = digest("gpu", seed, node, gpu)
    gpus = demo_gpus_of(model)
    return DemoIdentity(
        uuid=Uuid(gpus.uuid_start + as_uuid(salt)),
        serial=f"165{int(salt[32:44], 16) % 10**10:010d}",
        pci_bus_id=gpus.pci_bus_id(model, gpu),
        quality=0.95 + 0.05 * int(salt[44:48], 16) / 0xFFFF,
        warmth=6.0 * int(salt[48:52], 16) / 0xFFFF,
    )


def instance_uuid(seed: int, node: int, gpu: int, instance: int, model: DemoModel) -> Uuid:
    return Uuid(demo_gpus_of(model).instance_uuid_start + as_uuid(digest("mig", seed, node, gpu, instance)))
