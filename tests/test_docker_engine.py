"""The tests' own Docker Engine: it runs containers and leaves nothing."""

import subprocess

from tests.docker_engine import client


def test_a_container_runs_and_tells_its_status(test_image):
    engine = client().containers
    assert engine.run(test_image, ["echo", "hello"], network_mode="none", remove=True) == b"hello\n"
    container = engine.run(test_image, ["sh", "-c", "exit 7"], network_mode="none", detach=True)
    try:
        assert container.wait()["StatusCode"] == 7
    finally:
        container.remove()


def test_the_sdk_and_the_command_line_reach_the_same_engine(docker_host, test_image):
    listed = subprocess.run(["docker", "-H", docker_host, "images", "-q", test_image], capture_output=True, text=True, check=True)
    assert listed.stdout.strip()
