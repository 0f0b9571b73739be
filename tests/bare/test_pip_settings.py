"""The machine's own settings of pip, as they are carried into a bare one."""

from tests.bare import pip_settings


def test_what_settings_name_on_this_machine_is_carried_along(tmp_path, monkeypatch, capsys):
    root, wheels, certificate = tmp_path / "root", tmp_path / "wheels", tmp_path / "ca.crt"
    (root / "etc").mkdir(parents=True)
    wheels.mkdir()
    certificate.write_text("certificate")
    found = {
        "index-url": "https://index.invalid/simple",
        "extra-index-url": f"file://{tmp_path}/index%20one/simple file:///two/simple",
        "find-links": str(wheels),
        "cert": str(certificate),
        "default-timeout": "180",
    }
    monkeypatch.setattr(pip_settings, "settings", lambda: found)
    pip_settings.main(root)
    lines = (root / "etc" / "pip.conf").read_text().splitlines()
    assert lines == [
        "[global]",
        "index-url = https://index.invalid/simple",
        f"extra-index-url = {found['extra-index-url']}",
        f"find-links = {wheels}",
        "cert = /etc/pip/ca.crt",
        "default-timeout = 180",
    ]
    assert (root / "etc" / "pip" / "ca.crt").read_text() == "certificate"
    assert set(capsys.readouterr().out.splitlines()) == {f"{tmp_path}/index one", "/two", str(wheels)}


def test_the_environment_goes_before_the_files(monkeypatch):
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "77")
    assert pip_settings.settings()["default-timeout"] == "77"
