from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.sources.host.mounts import MAX_STUCK, TIMED_OUT, FilesystemSizes, parse_mountinfo
from tests.sources.host_tree import SIZES, HangingStat


def hanging() -> HangingStat:
    return HangingStat("/hang", lambda path: SIZES)


def test_everything_answers() -> None:
    stat = hanging()
    assert FilesystemSizes(stat).read(["/a", "/b"]) == {"/a": SIZES, "/b": SIZES}


def test_one_that_hangs_is_named_and_the_others_answer() -> None:
    stat = hanging()
    patient = FilesystemSizes(stat, 0.05)
    for _ in range(3):
        assert patient.read(["/a", "/hang", "/b"]) == {"/a": SIZES, "/hang": TIMED_OUT, "/b": SIZES}
    assert stat.calls.count("/hang") == 1, "not asked again while the first call has not come back"
    stat.release.set()
    for stuck in patient.stuck_threads:
        assert stuck.done.wait(10)
    assert patient.read(["/hang"]) == {"/hang": SIZES}


def test_many_that_hang_leave_few_threads_behind() -> None:
    stat = hanging()
    patient = FilesystemSizes(stat, 0.02)
    paths = [f"/hang{n}" for n in range(20)]
    for _ in range(3):
        assert patient.read([*paths, "/a"]) == dict.fromkeys([*paths, "/a"], TIMED_OUT)
    assert len(patient.stuck_threads) == MAX_STUCK
    assert len(stat.calls) == MAX_STUCK
    stat.release.set()
    for stuck in patient.stuck_threads:
        assert stuck.done.wait(10)
    assert patient.read(["/a"]) == {"/a": SIZES}


def test_an_error_has_node_exporters_text() -> None:
    def refused(path: str) -> os.statvfs_result:
        raise PermissionError(13, os.strerror(13), path)

    assert FilesystemSizes(refused).read(["/a"]) == {"/a": "permission denied"}
    assert FilesystemSizes().read(["/a\0b"]) == {"/a\0b": "invalid argument"}


def one(line: str, rootfs: str = "/") -> tuple[str, str]:
    (mount,) = parse_mountinfo(line, rootfs)
    return mount.mountpoint, mount.path


def test_a_root_mounted_elsewhere_is_taken_off_the_label_and_put_before_the_path() -> None:
    assert one("1 1 8:1 / / rw - ext4 /dev/sda rw", "/host") == ("/", "/host/")
    assert one("1 1 8:1 / /data rw - ext4 /dev/sda rw", "/host/") == ("/data", "/host/data")
    assert one("1 1 8:1 / /host rw - ext4 /dev/sda rw", "/host") == ("/", "/host/")
    assert one("1 1 8:1 / /host/data rw - ext4 /dev/sda rw", "/host") == ("/data", "/host/data")
    assert one("1 1 8:1 / /hostile rw - ext4 /dev/sda rw", "/host") == ("/hostile", "/host/hostile")


def test_the_path_undoes_every_escape_and_the_label_those_node_exporter_undoes() -> None:
    label, path = one(r"1 1 8:1 / /a\040b\011c\012d\134e rw - ext4 /dev/sda rw")
    assert label == "/a b\tc\\012d\\134e"
    assert path == "/a b\tc\nd\\e"


@given(st.text(alphabet=st.sampled_from(" -/:\\012ro,\tabc\n\u2028"), max_size=200))
def test_any_text_is_survived(text: str) -> None:
    for mount in parse_mountinfo(text, "/host"):
        assert mount.path.startswith("/host")


NAMES = st.text(st.characters(exclude_characters="\0/\n", codec="utf-8"), min_size=1, max_size=30)


def escape(name: str) -> str:
    for character in "\\ \t#":
        name = name.replace(character, f"\\{ord(character):03o}")
    return name


@given(name=NAMES, device=NAMES)
def test_any_name_is_found_again(name: str, device: str) -> None:
    line = f"1 1 8:1 / /m/{escape(name)} rw,relatime shared:1 - ext4 {escape(device)} rw"
    (mount,) = parse_mountinfo(f"{line}\n{line}\n")
    assert mount.path == f"/m/{name}"
