"""The console in Debian's Chromium: every view, hostile content, a conflict, dark, 380 px, the keyboard.

Where there is no Chromium with its driver, these tests are skipped and say so.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import slipstream
from slipstream.server import Server
from tests.console.support import Site, console
from tests.servers import real_server

webdriver = pytest.importorskip("selenium.webdriver")

EVIL = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
PICTURES = {
    ("#/", "dark", 1280): "overview",
    ("#/streams/ORDERS", "light", 1280): "stream",
    ("#/messages/ORDERS", "light", 1280): "messages",
    ("#/kv/settings/theme", "dark", 380): "narrow",
}
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium: apt-get install chromium chromium-driver"),
    pytest.mark.timeout(300),
]


class Target(NamedTuple):
    url: str
    faults: bool


@pytest.fixture(scope="module", params=["ours", "nats-server"])
def server(request: pytest.FixtureRequest) -> Iterator[Target]:
    ours = request.param == "ours"
    with Server(faults=True) if ours else real_server() as made:
        server = Target(made.url if isinstance(made, Server) else made, ours)
        with slipstream.connect_blocking(server.url) as client:
            js = client.jetstream()
            stream = js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3 if ours else 1, description=EVIL)
            with js.publisher() as publisher:
                for number in range(1, 5001):
                    body = json.dumps({"id": number, "note": EVIL}).encode()
                    publisher.publish(f"orders.{number % 5}", body, headers={"X": EVIL})
            js.publish("orders.<b>bold</b>", EVIL.encode())
            stream.create_consumer("workers", description=EVIL)
            js.create_key_value("settings", history=3, description=EVIL).put("theme", b'{"a": 1}')
            js.create_object_store("files").put(EVIL, b"x" * 10)
        yield server


@pytest.fixture(scope="module")
def site(server: Target) -> Iterator[Site]:
    with console(server.url, write=True) as site:
        yield site


@pytest.fixture(scope="module")
def driver(site: Site) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.set_window_size(1280, 900)
        driver.get(site.address)
        yield driver
    finally:
        driver.quit()


def wait(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except Exception as error:  # the page is being redrawn
            what = f"{what}: {type(error).__name__}"
        time.sleep(0.05)
    raise AssertionError(f"the page never had {what}")


def text(driver: Any) -> str:
    return str(driver.execute_script("return document.querySelector('main').textContent"))


def show(driver: Any, address: str, expected: str) -> None:
    driver.execute_script("location.hash = arguments[0]", address)
    wait(lambda: expected in text(driver), expected)


def click(driver: Any, label: str) -> None:
    wait(lambda: driver.find_element("xpath", f"//main//button[contains(., '{label}')]"), label).click()


def check(driver: Any) -> None:
    """Nothing ran, and the browser complained of nothing."""
    assert driver.execute_script("return window.pwned") is None
    assert driver.execute_script("return document.querySelectorAll('main img, main script, main b b').length") == 0
    assert [line for line in driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []


def test_the_token_is_not_in_the_address_and_rates_are_live(driver: Any, site: Site, server: Target) -> None:
    assert driver.current_url == f"{site.base}/"
    assert site.token not in driver.page_source
    wait(lambda: "Busiest streams" in text(driver), "the overview")
    before = text(driver)
    with slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        for _ in range(300):
            js.publish("orders.1", b"live")
    wait(lambda: text(driver) != before and "5,301" in text(driver), "the new messages")
    check(driver)


def test_every_view_shows_hostile_content_as_text(driver: Any) -> None:
    show(driver, "#/streams", "ORDERS")
    show(driver, "#/streams/ORDERS", "Configuration")
    assert EVIL in text(driver)
    click(driver, "Show as a tree")
    click(driver, "orders")
    wait(lambda: "<b>bold</b>" in text(driver), "the hostile subject")
    show(driver, "#/consumers", "workers")
    show(driver, "#/kv/settings/theme", "History")
    assert EVIL in text(driver)
    show(driver, "#/objects/files", "Download")
    assert EVIL in text(driver)
    show(driver, "#/messages/ORDERS/orders.%3Cb%3Ebold%3C%2Fb%3E", "5,001")
    driver.find_element("css selector", ".msg > button").click()
    wait(lambda: driver.find_elements("css selector", ".msg pre"), "the payload")
    assert EVIL in text(driver)
    check(driver)


def test_a_message_is_found_by_its_sequence_and_pages_turn(driver: Any) -> None:
    show(driver, "#/messages/ORDERS", "to 5,")
    wait(lambda: len(driver.find_elements("css selector", ".msg")) == 50, "a page")
    field = driver.find_element("css selector", "input[placeholder=Sequence]")
    field.send_keys("2,345\n")
    wait(lambda: driver.find_elements("css selector", ".msg .seq")[-1].text == "2,345", "the message")
    click(driver, "Older")
    wait(lambda: driver.find_elements("css selector", ".msg .seq")[0].text == "2,344", "the page before")
    check(driver)


def test_an_edit_of_a_key_that_changed_is_a_conflict(driver: Any, server: Target) -> None:
    show(driver, "#/kv/settings", "theme")
    click(driver, "theme")
    wait(lambda: driver.find_element("css selector", "summary"), "the editor").click()
    editor = driver.find_element("css selector", "textarea")
    editor.clear()
    editor.send_keys('{"a": 2}')
    click(driver, "Review the change")
    wait(lambda: driver.find_elements("css selector", ".diff .add"), "the difference")
    with slipstream.connect_blocking(server.url) as client:
        client.jetstream().key_value("settings").put("theme", b'{"a": "of another"}')
    click(driver, "Save over revision 1")
    wait(lambda: "Conflict" in text(driver) and "of another" in text(driver), "the conflict")
    driver.get_log("browser")  # the status 409 is logged there
    with slipstream.connect_blocking(server.url) as client:
        assert client.jetstream().key_value("settings").get("theme").value == b'{"a": "of another"}'


def test_a_configuration_is_changed_after_its_difference_was_shown(driver: Any, server: Target) -> None:
    show(driver, "#/streams/ORDERS", "Configuration")
    wait(lambda: driver.find_element("css selector", "summary"), "the editor").click()
    field = "document.querySelector('textarea')"
    driver.execute_script(f"{field}.value = {field}.value.replace('\"max_msgs\": -1', '\"max_msgs\": 99999')")
    click(driver, "Review the change")
    wait(lambda: driver.find_elements("css selector", ".diff .add, .diff .del"), "the difference")
    assert [line.text for line in driver.find_elements("css selector", ".diff .add")] == ['+   "max_msgs": 99999,']
    click(driver, "Change it")
    with slipstream.connect_blocking(server.url) as client:
        wait(lambda: client.jetstream().stream("ORDERS").info().config.max_msgs == 99999, "the change")
    check(driver)


def test_a_held_replica_is_seen_behind_trusted_reads(driver: Any, server: Target) -> None:
    show(driver, "#/trust/ORDERS", "min_last_seq")
    driver.find_element("css selector", "main form input").send_keys("orders.2\n")
    wait(lambda: "none was stale" in text(driver), "the reads")
    if server.faults:
        click(driver, "Hold")
        wait(lambda: "held" in text(driver), "the held replica")
        click(driver, "Release")
        wait(lambda: driver.find_elements("xpath", "//main//button[contains(., 'Hold')]"), "no held replica")
    check(driver)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280, 1900])
def test_no_view_is_wider_than_its_window(driver: Any, scheme: str, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    for address, expected in {
        "#/": "Busiest", "#/streams": "ORDERS", "#/streams/ORDERS": "Configuration", "#/messages/ORDERS": "to 5,",
        "#/consumers": "workers", "#/kv/settings/theme": "History", "#/objects/files": "Download",
        "#/trust/ORDERS": "min_last_seq",
    }.items():  # fmt: skip
        show(driver, address, expected)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, address
        picture = PICTURES.get((address, scheme, width))
        if picture and os.environ.get("SLIPSTREAM_PICTURES"):  # `docs/assets` gets them anew
            driver.save_screenshot(str(ASSETS / f"console-{picture}.png"))
    colour = driver.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (colour == "rgb(246, 247, 248)") == (scheme == "light")
    check(driver)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_keyboard_is_enough(driver: Any) -> None:
    show(driver, "#/", "Busiest")
    driver.find_element("css selector", "body").send_keys("3")
    wait(lambda: "Of which stream?" in text(driver), "the view of key 3")
    for _ in range(30):
        driver.switch_to.active_element.send_keys("\ue004")  # Tab
        if driver.switch_to.active_element.text == "ORDERS":
            break
    driver.switch_to.active_element.send_keys("\ue007")  # Enter
    wait(lambda: len(driver.find_elements("css selector", ".msg")) == 50, "the messages")
    check(driver)


def test_no_request_left_the_machine(driver: Any, site: Site) -> None:
    asked = set()
    for line in driver.get_log("performance"):
        event = json.loads(line["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            asked.add(event["params"]["request"]["url"])
    assert asked
    # `data:` is an icon of the browser's own controls: no request.
    assert {address for address in asked if not address.startswith((site.base, "data:"))} == set()
