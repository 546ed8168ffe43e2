"""The files that run the image, without an engine: what they forbid, and that commands, paths and times fit
together."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from typer.main import get_command

from rankmill import __version__
from rankmill.cli import app
from rankmill.config_file import read_config
from tests import ROOT

ROOT_COMMAND: Any = get_command(app)
DOCKER = ROOT / "docker"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))
    return found


SERVICE = compose()["services"]["schedule"]
CLUSTER = compose("compose-cluster.yaml")
OBJECTS = {
    (each["kind"], each["metadata"]["name"]): each
    for each in yaml.safe_load_all((DOCKER / "kubernetes-cronjob.yaml").read_text(encoding="utf-8"))
}
CRON_JOB = OBJECTS["CronJob", "rankmill"]
POD = CRON_JOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Parse ``rankmill ARGUMENTS`` as the command line would, and run nothing."""
    command: Any = ROOT_COMMAND
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    context = command.make_context("rankmill", list(arguments))
    return {**context.params, "rest": context.args}


def commands_in(text: str) -> list[list[str]]:
    """Every ``rankmill ..`` in comments and in strings of ``text``, as words."""
    found = re.findall(r"\brankmill ((?:schedule|run|health|models|report)\b[^\n\"`|&]*)", text)
    return [shlex.split(line) for line in found]


def below(path: str, folders: set[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def test_the_service_may_do_nothing_but_what_it_is_for() -> None:
    assert SERVICE["read_only"] is True
    assert SERVICE["cap_drop"] == ["ALL"]
    assert SERVICE["security_opt"] == ["no-new-privileges:true"]
    assert SERVICE["network_mode"] == "none"
    assert re.fullmatch(r"[1-9]\d*:0", SERVICE["user"])
    assert not {"privileged", "cap_add", "devices", "ports", "pid", "ipc", "init"} & SERVICE.keys()
    assert {"mem_limit", "memswap_limit", "cpus", "pids_limit", "restart", "logging"} <= SERVICE.keys()
    assert SERVICE["mem_limit"] == SERVICE["memswap_limit"]
    assert [line.split(":")[0] for line in SERVICE["tmpfs"]] == ["/tmp"]


def test_the_services_of_a_cluster_may_do_nothing_but_what_they_are_for() -> None:
    assert CLUSTER["networks"] == {"cluster": {"internal": True}}  # nobody else reaches the scheduler
    for service in CLUSTER["services"].values():
        assert service["image"] == f"rankmill-dask:{__version__}"
        assert service["build"]["args"] == {"LOCK": "dask"}
        assert service["networks"] == ["cluster"]
        assert not {"privileged", "cap_add", "devices", "ports", "pid", "ipc"} & service.keys()
        for name in ("read_only", "cap_drop", "security_opt", "user", "pids_limit", "tmpfs"):
            assert service[name] == SERVICE[name]
        assert service["volumes"] == CLUSTER["services"]["scheduler"]["volumes"]  # all see the same files
    assert re.search(r"^ARG LOCK=cloud$", DOCKERFILE, flags=re.MULTILINE)


def test_the_commands_of_a_cluster_are_those_of_dask_and_of_rankmill() -> None:
    pytest.importorskip("distributed")
    from distributed.cli import dask_scheduler, dask_worker

    services = CLUSTER["services"]
    assert services["scheduler"]["entrypoint"] == ["dask", "scheduler"]
    assert services["worker"]["entrypoint"] == ["dask", "worker"]
    scheduler = dask_scheduler.main.make_context("scheduler", services["scheduler"]["command"]).params
    worker = dask_worker.main.make_context("worker", services["worker"]["command"]).params
    address = f"tcp://scheduler:{scheduler['port']}"
    assert worker["scheduler"] == address
    assert worker["local_directory"] in services["worker"]["tmpfs"][0]
    profile = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
    assert services["worker"]["environment"] == profile
    text = (DOCKER / "compose-cluster.yaml").read_text(encoding="utf-8")
    (said,) = re.findall(r"run --rm rankmill (.*)", text)
    assert parsed(shlex.split(said))["cluster"] == address


def test_the_pod_may_do_nothing_but_what_it_is_for() -> None:
    limits = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert CONTAINER["securityContext"] == limits
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD.keys()
    assert CONTAINER["resources"]["limits"].keys() == {"cpu", "memory"}
    assert not any("hostPath" in volume for volume in POD["volumes"])
    assert CRON_JOB["spec"]["concurrencyPolicy"] == "Forbid"
    assert POD["restartPolicy"] == "Never"  # the policy by exit codes asks for it


def test_user_and_image_are_those_of_the_dockerfile() -> None:
    user = re.search(r"^USER (\d+)$", DOCKERFILE, flags=re.MULTILINE)
    assert user is not None
    assert SERVICE["user"].split(":")[0] == user[1] == str(POD["securityContext"]["runAsUser"])
    assert SERVICE["image"] == CONTAINER["image"] == f"rankmill:{__version__}"
    assert f'image.version="{__version__}"' in DOCKERFILE
    assert 'ENTRYPOINT ["rankmill"]' in DOCKERFILE
    assert "entrypoint" not in SERVICE
    assert "command" not in CONTAINER  # it would take the place of the entry point


def test_the_base_and_the_syntax_are_pinned_to_a_version_and_a_digest() -> None:
    assert re.match(r"# syntax=docker/dockerfile:1@sha256:[0-9a-f]{64}\n", DOCKERFILE)
    pinned = r"^ARG BASE=python:3\.1[1-3]\.\d+-slim-bookworm@sha256:[0-9a-f]{64}$"
    assert re.search(pinned, DOCKERFILE, flags=re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE) == ["${BASE}", "base", "base"]


def test_the_image_checks_the_health_of_the_runs_as_the_service_does() -> None:
    check = re.search(r"^HEALTHCHECK (.*) \\\n +CMD (.*)$", DOCKERFILE, flags=re.MULTILINE)
    assert check is not None
    asked = SERVICE["healthcheck"]
    assert asked["test"] == ["CMD-SHELL", check[2]]
    given = dict(word.removeprefix("--").replace("-", "_").split("=") for word in check[1].split())
    assert given == {name: str(value) for name, value in asked.items() if name != "test"}
    cluster = yaml.safe_load((DOCKER / "compose-cluster.yaml").read_text(encoding="utf-8"))
    assert all(service["healthcheck"] == {"disable": True} for service in cluster["services"].values())


def test_every_command_is_one_that_the_command_line_takes() -> None:
    schedule = parsed(SERVICE["command"])
    assert schedule["cron"] == "0 2 * * *"
    parsed(["run", *schedule["rest"], "--date", "2026-11-21"])
    assert parsed(CONTAINER["args"])["config"] == Path("/etc/rankmill/rankmill.toml")
    _, check = SERVICE["healthcheck"]["test"]
    assert check.endswith(" || exit 1")  # other codes than 0 and 1 are reserved
    said = [*commands_in(check)]
    for name in ("compose.yaml", "kubernetes-cronjob.yaml"):
        said += commands_in((DOCKER / name).read_text(encoding="utf-8"))
    assert len(said) >= 4
    for arguments in said:
        parsed(arguments)


def test_what_is_read_and_written_is_where_volumes_are() -> None:
    config = read_config(DOCKER / "rankmill.toml")
    assert config.rerank is not None
    assert parsed(SERVICE["command"])["grace"] < POD["terminationGracePeriodSeconds"] == 120  # as stop_grace_period, 2m
    assert {each.memory for each in (config.ingest.options, config.bin.options, config.rerank.options)} == {2 * 10**9}
    assert SERVICE["mem_limit"] == "4g"
    reads, writes = {*config.ingest.sources, *config.rerank.candidates}, {config.work}
    registry = SERVICE["environment"]["RANKMILL_REGISTRY"]
    mounts = {mount["target"]: mount for mount in SERVICE["volumes"]}
    for mount in mounts.values():
        assert (mount["type"] == "volume") == (not mount.get("read_only", False))
    read_only = {target for target, mount in mounts.items() if mount.get("read_only")}
    writable = mounts.keys() - read_only
    assert all(below(path, read_only) for path in {*reads, SERVICE["command"][1]})
    assert all(below(path, writable) for path in {*writes, registry})
    assert {mount["source"] for mount in mounts.values() if mount["type"] == "volume"} == compose()["volumes"].keys()
    checked = commands_in(SERVICE["healthcheck"]["test"][1])[0]
    assert checked[1] in writes
    for folder in (*writable, "/data"):  # new volumes take the owner of the folder that is there
        assert folder in DOCKERFILE


def test_the_cron_job_has_the_same_paths_as_the_service() -> None:
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in CONTAINER["volumeMounts"]}
    assert mounts.pop("/tmp") is False
    config = str(PurePosixPath(SERVICE["command"][1]).parent)
    expected = {mount["target"]: mount.get("read_only", False) for mount in SERVICE["volumes"]}
    expected[config] = expected.pop(SERVICE["command"][1])
    assert mounts == expected
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}
    claims = {each["persistentVolumeClaim"]["claimName"] for each in POD["volumes"] if "persistentVolumeClaim" in each}
    assert claims == {name for kind, name in OBJECTS if kind == "PersistentVolumeClaim"}
    assert CONTAINER["env"] == [{"name": name, "value": value} for name, value in SERVICE["environment"].items()]


def test_the_cron_job_brings_the_same_configuration() -> None:
    brought = OBJECTS["ConfigMap", "rankmill"]["data"]
    assert brought == {"rankmill.toml": (DOCKER / "rankmill.toml").read_text(encoding="utf-8")}


def test_only_what_trying_again_may_mend_is_tried_again() -> None:
    rules = CRON_JOB["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    final = next(rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob")
    assert set(final) == {1, 2, 10, 11, 12, 13}  # not 74, 75, 137, 143
