"""Object stores of other people on loopback, each started on free ports and ended by its process id."""

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ACCOUNT = "devstoreaccount1"
SECRET = base64.b64encode(b"a secret that is written nowhere").decode()
BUCKET = "models"


@dataclass(frozen=True)
class Server:
    """A store that is running."""

    url: str
    """Of its bucket."""
    environment: dict[str, str]
    """What a client needs to reach it."""
    log: Path
    pid: int


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name):
    """Path of a program, installed beside Python or anywhere on the path."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def s3_environment(port):
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testkey",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def _moto(folder, port):
    return ["moto_server", "-H", "127.0.0.1", "-p", str(port)], {}


def _ministack(folder, port):
    return ["ministack"], {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "IOT_MTLS_ENABLED": "0"}


def _seaweedfs(folder, port):
    keys = {"accessKey": "testkey", "secretKey": SECRET}
    users = {"identities": [{"name": "tests", "credentials": [keys], "actions": ["Admin"]}]}
    (folder / "users.json").write_text(json.dumps(users))
    others = [f"{part}.port" for part in ("master", "volume", "filer")]
    ports = {name: free_port() for name in (*others, *(f"{part}.grpc" for part in (*others, "s3.port")))}
    options = {
        "dir": folder, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "master.telemetry": "false", "s3": "true",
        "s3.config": folder / "users.json", "s3.iam": "false", "s3.port": port, "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.autoCreateBucket": "true", "master.volumeSizeLimitMB": 64, "volume.max": 64, **ports,
    }  # fmt: skip
    return ["weed", "server", *(f"-{name}={value}" for name, value in options.items())], {}


def _rclone(folder, port):
    (folder / "data" / BUCKET).mkdir(parents=True)
    return (
        ["rclone", "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"testkey,{SECRET}", str(folder / "data")],
        {"RCLONE_CONFIG": str(folder / "none")},
    )  # fmt: skip


def _azurite(folder, port):
    command = ["azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{SECRET}"}
    return [*command, "--disableTelemetry", "--skipApiVersionCheck", "--silent"], accounts


COMMANDS = {"moto": _moto, "ministack": _ministack, "seaweedfs": _seaweedfs, "rclone": _rclone, "azurite": _azurite}
PROGRAMS = {
    "moto": "moto_server",
    "ministack": "ministack",
    "seaweedfs": "weed",
    "rclone": "rclone",
    "azurite": "azurite-blob",
}


@contextmanager
def running(name):
    """Start a store, wait until it answers, and kill it at the end; LookupError if it is not installed."""
    found = program(PROGRAMS[name])
    if found is None:
        raise LookupError(f"{PROGRAMS[name]} is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder, port = Path(made), free_port()
        command, settings = COMMANDS[name](folder, port)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [found, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | settings,
                cwd=folder,
                start_new_session=True,
            )
        try:
            environment = s3_environment(port) if name != "azurite" else azure_environment(port)
            _wait(name, port, process, folder / "log")
            yield Server(f"{'az' if name == 'azurite' else 's3'}://{BUCKET}", environment, folder / "log", process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its own session, started above
            process.wait()


def azure_environment(port):
    return {
        "AZURE_STORAGE_ACCOUNT": ACCOUNT,
        "AZURE_STORAGE_KEY": SECRET,
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
    }


def _wait(name, port, process, log):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, f"{name} ended: {log.read_text(errors='replace')[-2000:]}"
        try:
            make_bucket(name, port, BUCKET)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{name} did not answer: {log.read_text(errors='replace')[-2000:]}")


def make_bucket(name, port, bucket):
    url, method, headers = f"http://127.0.0.1:{port}/{bucket}", "PUT", {}
    if name in {"seaweedfs", "rclone"}:  # makes it with the first object; or it is there
        url, method = f"http://127.0.0.1:{port}/", "GET"
    if name == "azurite":
        url, headers = _signed_for_azure(port, bucket)
    try:
        urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=10).read()
    except urllib.error.HTTPError:
        if name not in {"seaweedfs", "rclone"}:  # they answer, and do not know us
            raise
    if name == "seaweedfs":
        import obstore
        from obstore.store import S3Store

        keys = {"access_key_id": "testkey", "secret_access_key": SECRET, "region": "us-east-1"}
        options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
        store = S3Store(bucket, endpoint=f"http://127.0.0.1:{port}", **keys, **options)
        try:
            obstore.put(store, "made", b"", mode="create")  # needs more of its parts than a plain one
            obstore.delete(store, "made")
        except obstore.exceptions.BaseError as error:
            raise ConnectionError(str(error)) from None


def _signed_for_azure(port, container):
    """Return the request that makes a container, signed by the shared key."""
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    version = "2021-08-06"
    resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(SECRET), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
    return f"http://127.0.0.1:{port}/{ACCOUNT}/{container}?restype=container", headers
