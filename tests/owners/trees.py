"""A machine made of files: a procfs with the processes a test wants, and the kubelet's log folder."""

from __future__ import annotations

from pathlib import Path

BOOTED_AT = 1_700_000_000
CONTAINER = "1cd3449e930b8a28c7595240fa32ba20c84f36d059e5fbe63104ad40057992d1"
POD_UID = "121157b5-c67d-4c3e-9052-cb27bbb711fb"


def pod_cgroup(uid: str = POD_UID, container: str = CONTAINER) -> str:
    """As containerd under systemd writes it on cgroup v2."""
    escaped = uid.replace("-", "_")
    return (
        "0::/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{escaped}.slice/cri-containerd-{container}.scope\n"
    )


class ProcTree:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "stat").write_text(f"cpu  1 2 3 4\nbtime {BOOTED_AT}\nprocesses 9\n")

    def add(
        self,
        pid: int,
        *,
        comm: str = "python3",
        start_ticks: int = 1000,
        uid: int = 0,
        gid: int = 0,
        cgroup: str = "0::/user.slice\n",
        environ: dict[str, str] | None = None,
        cmdline: tuple[str, ...] = (),
        passwd: str = "",
    ) -> Path:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["0"] * 18
        (folder / "stat").write_text(f"{pid} ({comm}) S {' '.join(fields)} {start_ticks} 0 0\n")
        ids = f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{gid}\t{gid}\t{gid}\t{gid}\n"
        (folder / "status").write_text(f"Name:\t{comm}\nUmask:\t0022\nState:\tS (sleeping)\n{ids}Threads:\t1\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "environ").write_text("".join(f"{k}={v}\0" for k, v in (environ or {}).items()))
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in cmdline))
        if passwd:
            (folder / "root/etc").mkdir(parents=True, exist_ok=True)
            (folder / "root/etc/passwd").write_text(passwd)
        return folder

    def remove(self, pid: int) -> None:
        folder = self.root / str(pid)
        for name in ("stat", "status", "cgroup", "environ", "cmdline"):
            (folder / name).unlink()
        folder.rmdir()


def add_pod_log(root: Path, namespace: str, pod: str, uid: str, *containers: str) -> None:
    for container in containers:
        folder = root / f"{namespace}_{pod}_{uid}" / container
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "0.log").touch()


def add_log_link(root: Path, namespace: str, pod: str, uid: str, container: str, container_id: str) -> None:
    """As the kubelet makes it: the name is cut to 255 characters."""
    name = f"{pod}_{namespace}_{container}-{container_id}"[: 255 - len(".log")]
    (root / f"{name}.log").symlink_to(f"/var/log/pods/{namespace}_{pod}_{uid}/{container}/0.log")
