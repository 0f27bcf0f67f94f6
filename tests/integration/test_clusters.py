"""The commands of docs/howto/gpus-and-clusters.md on this machine: torchrun twice, SLURM with stand-ins for it.

And two nodes with copies of the data, as in docs/howto/past-one-machine.md.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from mtx.storage.run_files import TRAIN_STORE
from tests.integration.commands import ENVIRONMENT, TINY, events, mtx, wait_until
from tests.integration.test_ranks import SETTINGS, STEPS, close_weights
from tests.rig import PATIENCE_S

pytestmark = [
    pytest.mark.seconds, pytest.mark.skipif(os.name != "posix", reason="needs a shell")
]  # fmt: skip
Shell = Callable[..., "subprocess.Popen[bytes]"]
TEXT = (Path(__file__).parents[2] / "docs" / "howto" / "gpus-and-clusters.md").read_text(encoding="utf-8")
COMMAND = "mtx train wmt14-en-de-base data.dir=/shared/text run_dir=/shared/runs/base"
STAND_INS = {
    "mtx": 'exec "$PYTHON" -m mtx "$@"',
    "srun": """
        while [[ $1 == --* ]]; do shift; done
        for task in 0 1; do
            SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & tasks+=($!)
        done
        echo "${tasks[@]}" > "$SPOOL/tasks"
        code=0
        for task in "${tasks[@]}"; do wait "$task"; last=$?; [ "$last" -gt "$code" ] && code=$last; done
        exit "$code" """,
    "scancel": '[ "$*" = "--signal=TERM 7" ] && kill -TERM $(cat "$SPOOL/tasks")',
    "scontrol": '[ "$*" = "show hostnames nodes" ] && echo 127.0.0.1 || echo "$*" >> "$SPOOL/requeued"',
}


def block(language: str, part: str) -> str:
    """The block of code of the document that has this in it."""
    (found,) = (code for code in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if part in code)
    return str(found)


def settings(run: Path, corpus: Path, *more: str) -> str:
    words = [*TINY, f"data.train={corpus}", f"run_dir={run}", *more]
    return f"mtx train {shlex.join(words)}"


@pytest.fixture
def shell() -> Iterator[Shell]:
    """Starts a command of bash, which ends with all that it started when the test does."""
    started = list["subprocess.Popen[bytes]"]()

    def start(*words: str, **environment: str) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(
            ["bash", *words], env={**ENVIRONMENT, **environment}, stdout=pipe, stderr=pipe, start_new_session=True
        ))  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.extended
def test_the_slurm_script_gives_the_job_back_and_goes_on(corpus: Path, tmp_path: Path, shell: Shell) -> None:
    spool, run = tmp_path / "spool", tmp_path / "run"
    spool.mkdir()
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable, "SPOOL": str(spool),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nodes", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_CPUS_PER_TASK": "1",
    }  # fmt: skip

    def submit(*more: str) -> "subprocess.Popen[bytes]":
        script = tmp_path / "job.sh"
        script.write_text(block("bash", COMMAND).replace(COMMAND, settings(run, corpus, *more)))
        return shell(str(script), **environment)

    job = submit("training.max_steps=100000", "training.validate_every=100000")
    wait_until((run / "checkpoints" / "step-00000004").is_dir, job)
    job.send_signal(signal.SIGUSR1)
    _, err = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 143 and "the state is saved" in err.decode(), err.decode()
    assert (spool / "requeued").read_text() == "requeue 7\n"

    last = max(event["step"] for event in events(run) if "step" in event)
    job = submit(f"training.max_steps={last + 3}", "training.validate_every=100000")
    _, err = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, err.decode()
    assert (spool / "requeued").read_text() == "requeue 7\n", "a finished job is not given back"
    starts = [event for event in events(run) if event["event"] == "start"]
    assert [start["ranks"] for start in starts] == [2, 2] and starts[1]["step"] >= 4


def torchrun(run: Path, corpus: Path, *more: str) -> str:
    """The command for each of two machines, here with one rank each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = block("", "--rdzv-endpoint").replace(COMMAND, settings(run, corpus, *more))
    for written, here in (("FIRST_MACHINE:29500", f"127.0.0.1:{port}"), ("nproc-per-node=8", "nproc-per-node=1")):
        assert written in command
        command = command.replace(written, here)
    return "exec " + command.replace("torchrun", f"{shlex.quote(sys.executable)} -m torch.distributed.run", 1)


@pytest.mark.extended
def test_torchrun_on_two_machines(corpus: Path, tmp_path: Path, shell: Shell) -> None:
    run = tmp_path / "run"
    machines = [shell("-c", command) for command in 2 * [torchrun(run, corpus)]]
    outputs = [machine.communicate(timeout=PATIENCE_S) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], outputs
    assert b"".join(out for out, _ in outputs).startswith(b"heldout BLEU ")
    (start,) = (event for event in events(run) if event["event"] == "start")
    assert start["ranks"] == 2


@pytest.mark.extended
def test_torchrun_on_two_machines_starts_again_after_a_rank_has_died(
    corpus: Path, tmp_path: Path, shell: Shell
) -> None:
    """The two launchers count their restarts differently, and their store still holds what the first start left."""
    run = tmp_path / "run"
    more = ["training.max_steps=200", "training.validate_every=200"]
    machines = [shell("-c", command) for command in 2 * [torchrun(run, corpus, *more)]]
    wait_until((run / "checkpoints" / "step-00000004").is_dir, machines[0])
    (rank,) = Path(f"/proc/{machines[1].pid}/task/{machines[1].pid}/children").read_text().split()
    os.kill(int(rank), signal.SIGKILL)
    outputs = [machine.communicate(timeout=PATIENCE_S) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], outputs
    starts = [event["step"] for event in events(run) if event["event"] == "start"]
    assert len(starts) == 2 and starts[1] >= 4


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="one link leads to two places by /proc/self")
def test_two_nodes_with_copies_of_the_data(corpus: Path, tmp_path: Path, shell: Shell) -> None:
    """They learn what one process does, and stop where the copy of one of them is damaged."""
    settings = [*SETTINGS, f"data.train={corpus}"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    nodes = [tmp_path / "node-0", tmp_path / "node-1"]
    for command, directory in (("train", whole), ("prepare", run)):
        done = mtx(command, *settings, f"run_dir={directory}")
        assert done.returncode == 0, done.stderr
    for node in nodes:
        shutil.copytree(run / "data", node / "data")
    shutil.rmtree(run / "data")
    (run / "data").symlink_to("/proc/self/cwd/data")

    def train(*more: str) -> list[tuple[int, str]]:
        """Exit code and messages of each node."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        launcher = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
            "--master-addr=127.0.0.1", f"--master-port={port}",
        ]  # fmt: skip
        training = ["-m", "mtx", "train", *settings, *more, f"run_dir={run}"]
        machines = []
        for rank, node in enumerate(nodes):
            command = shlex.join([*launcher, f"--node-rank={rank}", *training])
            machines.append(shell("-c", f"cd {shlex.quote(str(node))} && exec {command}", GLOO_SOCKET_IFNAME="lo"))
        errors = [machine.communicate(timeout=PATIENCE_S)[1].decode() for machine in machines]
        return [(machine.returncode, error) for machine, error in zip(machines, errors, strict=True)]

    ends = train()
    assert [code for code, _ in ends] == [0, 0], ends
    close_weights(run, whole)
    assert (run / "data").is_symlink()

    store = nodes[1] / "data" / TRAIN_STORE
    content = bytearray(store.read_bytes())
    content[len(content) // 2] ^= 1
    store.write_bytes(content)
    ends = train(f"training.max_steps={STEPS + 1}")
    assert [code for code, _ in ends] == [1, 1], ends
    message = f"error: rank 1 on {socket.gethostname()}: {run}/data/{TRAIN_STORE}: damaged file"
    assert message in ends[0][1] and "error: " not in ends[1][1], ends
    assert len([event for event in events(run) if event["event"] == "start"]) == 1


def test_the_kubernetes_job_is_whole() -> None:
    job = yaml.safe_load(block("yaml", "PyTorchJob"))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"] == replicas["Worker"]
    pod = replicas["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["torchrun", "-m", *COMMAND.split()]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert job["spec"]["nprocPerNode"] == str(container["resources"]["limits"]["nvidia.com/gpu"])
