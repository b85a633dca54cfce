"""Settings as a page shows them: complete, and without secrets."""

from pydantic import BaseModel, Field

from meruit.config import GovernanceSettings, ServiceSettings, Settings
from meruit.console.settings_shown import HIDDEN, list_settings


def test_each_setting_is_shown_with_whether_it_is_the_default() -> None:
    found = list_settings(Settings(service=ServiceSettings(requests_per_minute=7)))
    shown = {one.name: (one.value, one.is_default) for several in found.values() for one in several}
    assert shown["service.requests_per_minute"] == ("7", False)
    assert shown["service.max_body_bytes"] == ("1048576", True)
    assert shown["verification.governance_check"] == ("yes", True)
    assert set(found) == set(Settings.model_fields)


def test_secrets_in_names_and_addresses_are_hidden() -> None:
    class Section(BaseModel):
        password: str = ""
        api_key: str | None = None
        url: str = ""
        options: dict[str, str] = Field(default_factory=dict)

    class Whole(BaseModel):
        section: Section = Field(default_factory=Section)

    whole = Whole(
        section=Section(password="s3cret", api_key="k3y", url="https://me:s3cret@host/", options={"token": "t0k"})
    )
    shown = {one.name: one.value for one in list_settings(whole)["section"]}
    assert shown == {
        "section.password": HIDDEN,
        "section.api_key": HIDDEN,
        "section.url": f"https://{HIDDEN}@host/",
        "section.options.token": HIDDEN,
    }


def test_a_variable_that_holds_a_secret_is_named() -> None:
    settings = Settings(governance=GovernanceSettings(url="https://governance.test/", token_variable="THE_TOKEN"))
    shown = {one.name: one.value for one in list_settings(settings)["governance"]}
    assert shown["governance.token_variable"] == "THE_TOKEN"
