"""The image itself, built by buildah without a container engine, and a whole run in it as the files in ``docker/``
start it.

The base image is a stand-in, since no registry of images is asked for one: Debian with Python of the same minor version
as the Dockerfile names.  Everything else is what the Dockerfile says.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import ROOT

pytestmark = pytest.mark.slow
TOOLS = ("buildah", "mmdebstrap", "unshare", "setpriv")
BASE = (
    "localhost/base",
    "trixie",
    "python3,python3-venv,ca-certificates",
)  # the suite whose Python the Dockerfile names
ADDED_AT_MOST = 650e6  # bytes that the image may add to its base
HOME_OF_ROOT = "/root"  # in the image, while it is built

CONTAINER = """
set -eu
root=$1 place=$2
shift 2
mount --bind "$root" "$root"
mount --bind -o ro "$place/data" "$root/data"
mount --bind "$place/work" "$root/var/lib/rankmill/work"
mount --bind "$place/registry" "$root/var/lib/rankmill/registry"
mount -t tmpfs -o size=256m,mode=1777,noexec,nosuid,nodev tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for device in null urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid 10001 --regid 0 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
"""What an engine does with ``--read-only --network none --cap-drop ALL --user 10001:0``; run in namespaces of its own."""

LOOK_AROUND = """
import json, os, socket

def written(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror

facts = {"user": [os.getuid(), os.getgid()], "interfaces": [name for _, name in socket.if_nameindex()]}
facts["written"] = [written(path) for path in ("/x", "/opt/rankmill/x", "/data/x", "/var/lib/rankmill/x", "/tmp/x")]
facts["capabilities"] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")]
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Image:
    root: Path
    """Its file system, mounted."""
    config: dict[str, Any]
    """What it says of who runs it: ``Env``, ``Entrypoint``, ``User``, ``WorkingDir``."""
    added: int
    """Bytes of files beyond those of its base."""

    def run(self, place: Path, *arguments: str, entrypoint: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run it as an engine would, without network and with a read-only root; data, work and registry lie in
        ``place``."""
        assert self.config["User"] == "10001"
        variables = [
            *self.config["Env"],
            "RANKMILL_REGISTRY=/var/lib/rankmill/registry",
        ]  # the latter as in compose.yaml
        namespaces = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        where = ["env", "--ignore-environment", f"--chdir={self.config['WorkingDir']}", *variables]
        command = [*(entrypoint or self.config["Entrypoint"]), *arguments]
        return subprocess.run(
            [*namespaces, "sh", "-c", CONTAINER, "container", str(self.root), str(place), *where, *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def checked(command: Sequence[str | Path]) -> str:
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def is_of_this_machine(value: str) -> bool:
    """Return whether a setting of pip has a path or a ``file:`` address, such as the constraints file of
    ``constraint``."""
    return any(word.startswith("file:") or ("/" in word and "://" not in word) for word in value.split())


def write_settings_of_pip(home: Path) -> None:
    """Write the pip settings of this machine below ``home``, for the build; without paths, which the image does not
    have."""
    reported = checked([sys.executable, "-m", "pip", "config", "list"])
    found = {
        key: ast.literal_eval(value)
        for key, value in re.findall(r"^\S*?\.([\w-]+)=(.*)$", reported, flags=re.MULTILINE)
    }
    kept = {key: value for key, value in found.items() if key == "cert" or not is_of_this_machine(str(value))}
    (home / ".config" / "pip").mkdir(parents=True)
    if "cert" in kept:
        shutil.copy(kept["cert"], home / "cert.pem")
        kept["cert"] = f"{HOME_OF_ROOT}/cert.pem"
    lines = [f"{key} = {value}" for key, value in kept.items()]
    (home / ".config" / "pip" / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if os.geteuid() != 0:
        pytest.skip("needs root: builds an image and mounts it")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install buildah mmdebstrap")
    with tempfile.TemporaryDirectory(prefix="rankmill-built-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_settings_of_pip(folder / "home")
        buildah = ["buildah", "--storage-driver", "vfs", "--root", folder / "store", "--runroot", folder / "run"]
        tag, suite, packages = BASE
        checked(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", suite, folder / "base.tar"])
        scratch = checked([*buildah, "from", "scratch"]).strip()
        checked([*buildah, "add", "--quiet", scratch, folder / "base.tar", "/"])
        checked([*buildah, "commit", "--quiet", "--rm", scratch, tag])
        build = ["build", "--isolation", "chroot", "--pull=never", "--from", tag, "--tag", "localhost/rankmill"]
        print(checked([*buildah, *build, "--volume", f"{folder / 'home'}:{HOME_OF_ROOT}:ro", ROOT]))
        facts = json.loads(checked([*buildah, "inspect", "--type", "image", "localhost/rankmill"]))
        roots = []
        for each in (tag, "localhost/rankmill"):
            container = checked([*buildah, "from", "--pull-never", each]).strip()
            roots.append(Path(checked([*buildah, "mount", container]).strip()))
        yield Image(roots[1], facts["OCIv1"]["config"], bytes_below(roots[1]) - bytes_below(roots[0]))
        checked([*buildah, "umount", "--all"])


def bytes_below(root: Path) -> int:
    """Sum the sizes of the files, each once however many names it has."""
    found = [path.lstat() for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum({(each.st_dev, each.st_ino): each.st_size for each in found}.values())


def table(seed: int, queries: int, *, graded: bool) -> pa.Table:
    """Twelve documents a query; the grade follows the sum of three of the five features, so a model beats each of them."""
    rng, n_rows = np.random.default_rng(seed), 12 * queries
    values = rng.standard_normal((n_rows, 5)).astype(np.float32)
    columns: dict[str, Any] = {"query_id": np.repeat(np.arange(queries), 12), "doc_id": np.arange(n_rows)}
    if graded:
        columns["grade"] = np.digitize(values[:, :3].sum(axis=1) + 0.3 * rng.standard_normal(n_rows), [-1.0, 1.0, 2.5])
    return pa.table(columns | {f"f{number}": values[:, number] for number in range(5)})


@pytest.fixture
def place() -> Iterator[Path]:
    """The folders of the container: data with the configuration of ``docker/``, work and registry of its user."""
    with tempfile.TemporaryDirectory(prefix="rankmill-place-") as name:
        place = Path(name)
        for folder in ("data/judgments", "data/candidates", "work", "registry"):
            (place / folder).mkdir(parents=True)
        shutil.copy(ROOT / "docker" / "rankmill.toml", place / "data")
        pq.write_table(table(1, 300, graded=True), place / "data" / "judgments" / "part.parquet")
        pq.write_table(table(2, 100, graded=False), place / "data" / "candidates" / "part.parquet")
        for path in (place, *place.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for folder in ("work", "registry"):
            os.chown(place / folder, 10001, 0)
        yield place


def test_the_image_has_no_setting_of_the_machine_that_built_it_and_little_that_it_does_not_need(image: Image) -> None:
    version = re.search(r"^ARG BASE=python:(3\.\d+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert version is not None
    assert list((image.root / "opt/rankmill/lib").glob(f"python{version[1]}"))  # so the stand-in is fit for it
    assert not any((image.root / "root").glob("*.pem"))
    assert not (image.root / "root" / ".config").exists()
    assert not list((image.root / "opt/rankmill").rglob("*pip*/_internal"))
    assert image.added < ADDED_AT_MOST
    print(f"the image adds {image.added / 1e6:.0f} MB to its base")


def test_a_whole_run_with_a_read_only_root_without_network_rights_or_root(image: Image, place: Path) -> None:
    around = json.loads(image.run(place, "-c", LOOK_AROUND, entrypoint=["python"]).stdout)
    assert around["user"] == [10001, 0]
    assert around["interfaces"] == ["lo"]
    assert set(around["capabilities"]) == {"0" * 16}
    assert around["written"] == ["Read-only file system"] * 4 + [None]
    for outcome in ("done", "unchanged"):
        ran = image.run(place, "run", "/data/rankmill.toml")
        print(ran.stdout, ran.stderr)
        assert ran.returncode == 0, ran.stderr
        assert json.loads((place / "work" / "last_run.json").read_text())["outcome"] == outcome
    ranked = pq.ParquetDataset(sorted((place / "work" / "ranked").glob("*.parquet"))).read()
    assert len(ranked) == 1200
    assert {path.stat().st_uid for name in ("work", "registry") for path in (place / name).rglob("*")} == {10001}
    assert image.run(place, "models", "show", "web@production").returncode == 0
