"""The console in Debian's Chromium: every view, hostile content, a conflict, a replay, dark, 380 px, the keyboard.

Where there is no Chromium with its driver, these tests are skipped and say so by name.
"""

from __future__ import annotations

import base64
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
from tests.console.support import Site, console, dead_letter, recorded_pipeline
from tests.servers import real_server

webdriver = pytest.importorskip("selenium.webdriver")

EVIL = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
# `SLIPSTREAM_PICTURES=1 pytest tests/console/test_browser.py -k ours` makes those of the documentation anew.
PICTURES = {
    ("#/", "dark", 1280): "overview",
    ("#/streams/ORDERS", "light", 1280): "stream",
    ("#/messages/ORDERS", "light", 1280): "messages",
    ("#/pipelines", "dark", 1280): "pipelines",
    ("#/kv/settings/theme", "dark", 380): "narrow",
}
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium: apt-get install chromium chromium-driver"),
    pytest.mark.timeout(300),
]
TAB, ENTER, DOWN, ESCAPE = "\ue004", "\ue007", "\ue015", "\ue00c"


class Target(NamedTuple):
    url: str
    faults: bool
    pipeline: str
    go_on: Callable[[int], None]


@pytest.fixture(scope="module", params=["ours", "nats-server"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    ours = request.param == "ours"
    with Server(faults=True) if ours else real_server() as made:
        url = made.url if isinstance(made, Server) else made
        with slipstream.connect_blocking(url) as client:
            js = client.jetstream()
            stream = js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3 if ours else 1, description=EVIL)
            with js.publisher() as publisher:
                for number in range(1, 5001):
                    body = json.dumps({"id": number, "note": EVIL}).encode()
                    publisher.publish(f"orders.{number % 5}", body, headers={"X": EVIL})
            js.publish("orders.<b>bold</b>", EVIL.encode())
            stream.create_consumer("workers", description=EVIL)
            js.create_key_value("settings", history=3, description=EVIL).put("theme", b'{"a": 1}')
            js.publish("$KV.settings.<b>bold</b>", EVIL.encode())  # no client of ours writes such a key
            js.key_value("settings").put("users.name", EVIL.encode())
            js.create_object_store("files").put(EVIL, EVIL.encode())
            js.create_stream("ORDERS_DEAD", subjects=["ORDERS_DEAD.>"])
            for number in (11, 12, 13):
                dead_letter(js, number, "orders.1", EVIL.encode(), f"does not fit the schema {EVIL}")
        file, go_on = recorded_pipeline(tmp_path_factory.mktemp("pipeline"), url)
        yield Target(url, ours, file, go_on)


@pytest.fixture(scope="module")
def site(server: Target) -> Iterator[Site]:
    with console(server.url, write=True, pipelines=[server.pipeline]) as site:
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
    return str(driver.execute_script("return document.body.textContent"))


def show(driver: Any, address: str, expected: str) -> None:
    driver.execute_script("location.hash = arguments[0]", address)
    wait(lambda: expected in str(driver.execute_script("return document.querySelector('main').textContent")), expected)


def click(driver: Any, label: str, inside: str = "//main") -> None:
    """Scrolled into the middle first: a sticky header may cover what the driver scrolls to the edge."""

    def press() -> bool:
        button = driver.find_element("xpath", f"{inside}//button[contains(., '{label}')]")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        return True

    wait(press, label)


def open_details(driver: Any, css: str) -> None:
    wait(lambda: driver.find_element("css selector", css), css)
    driver.execute_script("document.querySelector(arguments[0]).click()", css)


def check(driver: Any) -> None:
    """Nothing ran, and the browser complained of nothing."""
    assert driver.execute_script("return window.pwned") is None
    assert driver.execute_script("return document.querySelectorAll('main img, main script, main b b').length") == 0
    assert [line for line in driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []


def test_the_token_is_not_in_the_address_and_rates_are_live(driver: Any, site: Site, server: Target) -> None:
    assert driver.current_url == f"{site.base}/"
    assert site.token not in driver.page_source
    wait(lambda: "Busiest streams" in text(driver) and "5,001" in text(driver), "the overview")
    with slipstream.connect_blocking(server.url, name="busy-client") as client:
        js = client.jetstream()
        for _ in range(300):
            js.publish("orders.1", b"live")
        wait(lambda: "5,301" in text(driver), "the new messages")
        wait(lambda: "busy-client" in text(driver), "the connection")
    # A plot has the rate, and the focus of a table stays while its figures move.
    drawn = "return [...document.querySelectorAll('.line')].some((one) => (one.getAttribute('d') || '').includes('L'))"
    wait(lambda: driver.execute_script(drawn), "a line")
    link = "document.querySelector('td a[href=\"#/streams/ORDERS\"]')"
    driver.execute_script(f"{link}.focus()")
    with slipstream.connect_blocking(server.url) as client:
        client.jetstream().publish("orders.1", b"live")
    wait(lambda: "5,302" in text(driver), "the next sample")
    assert driver.execute_script(f"return document.activeElement === {link}")
    check(driver)


def test_every_view_shows_hostile_content_as_text(driver: Any) -> None:
    show(driver, "#/streams", "ORDERS")
    show(driver, "#/streams/ORDERS", "Configuration")
    assert EVIL in text(driver)
    click(driver, "orders")
    wait(lambda: "<b>bold</b>" in text(driver), "the hostile subject")
    show(driver, "#/consumers", "workers")
    show(driver, "#/consumers/ORDERS/workers", "Acknowledged up to")
    assert EVIL in text(driver)
    show(driver, "#/kv/settings/theme", "History")
    assert EVIL in text(driver)
    show(driver, "#/kv/settings/users.name", "History")
    wait(lambda: "<b>bold</b>" in text(driver), "the hostile key")
    wait(lambda: EVIL in str(driver.find_element("css selector", ".entry").text), "the hostile value")
    show(driver, "#/objects/files", "Download")
    click(driver, "script")
    wait(lambda: driver.find_elements("css selector", ".split pre"), "the preview")
    assert EVIL in text(driver)
    show(driver, "#/messages/ORDERS/orders.%3Cb%3Ebold%3C%2Fb%3E", "5,001")
    driver.find_element("css selector", ".msg > button").click()
    wait(lambda: driver.find_elements("css selector", ".msg pre"), "the payload")
    assert EVIL in text(driver)
    show(driver, "#/pipelines", "Dead letters")
    wait(lambda: EVIL in text(driver), "the hostile reason")
    show(driver, "#/%3Cscript%3Ewindow.pwned=1%3C/script%3E", "Overview")
    check(driver)


def test_a_message_is_found_by_sequence_time_subject_and_text(driver: Any) -> None:
    show(driver, "#/messages/ORDERS", "to 5,")
    wait(lambda: len(driver.find_elements("css selector", ".msg")) == 50, "a page")
    field = driver.find_element("css selector", "input[placeholder=Sequence]")
    field.send_keys("2,345\n")
    wait(lambda: driver.find_elements("css selector", ".msg .seq")[-1].text == "2,345", "the message")
    click(driver, "Older")
    wait(lambda: driver.find_elements("css selector", ".msg .seq")[0].text == "2,344", "the page before")
    click(driver, "Newer")
    wait(lambda: driver.find_elements("css selector", ".msg .seq")[-1].text == "2,345", "the page again")
    slide = "const s = document.querySelector('input[type=range]'); s.value = 777; s.dispatchEvent(new Event('change'))"
    driver.execute_script(slide)
    wait(lambda: driver.find_elements("css selector", ".msg .seq")[0].text == "777", "the position of the slider")
    field.clear()
    field.send_keys("1")
    driver.find_element("css selector", "input[aria-label='Find text']").send_keys('"id": 4321,\n')
    wait(lambda: "That is all" in text(driver), "the end of the search")
    assert [one.text for one in driver.find_elements("css selector", ".msg .seq")] == ["4,321"]
    check(driver)


def test_the_tail_follows_and_a_copy_is_shown_before_it_is_sent(driver: Any, server: Target) -> None:
    show(driver, "#/messages/ORDERS/orders.tail", "No message here")
    click(driver, "Tail")
    with slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        ack = js.publish("orders.tail", b"\xff\x00binary", headers={"Kind": "odd"})
        wait(lambda: driver.find_elements("css selector", ".msg"), "the message")
        driver.find_element("css selector", ".msg > button").click()
        click(driver, "Republish")
        wait(lambda: "Republish message" in text(driver), "the composer")
        click(driver, "Review")
        wait(lambda: "This is sent to" in text(driver), "what is sent")
        assert js.stream("ORDERS").info().state.last_seq == ack.seq
        click(driver, "Publish now")
        wait(lambda: js.stream("ORDERS").info().state.last_seq == ack.seq + 1, "the copy")
        copied = js.stream("ORDERS").get(ack.seq + 1)
        assert (copied.data, dict(copied.headers.items())) == (b"\xff\x00binary", {"Kind": "odd"})
    check(driver)


def test_an_edit_of_a_key_that_changed_is_a_conflict(driver: Any, server: Target) -> None:
    show(driver, "#/kv/settings", "theme")
    click(driver, "theme")
    wait(lambda: "revision 1" in text(driver), "the entry")
    open_details(driver, ".edit > summary")
    editor = wait(lambda: driver.find_element("css selector", ".edit textarea"), "the editor")
    editor.clear()
    editor.send_keys('{"a": 2}')
    click(driver, "Review the change")
    wait(lambda: driver.find_elements("css selector", ".edit .diff .add"), "the difference")
    with slipstream.connect_blocking(server.url) as client:
        client.jetstream().key_value("settings").put("theme", b'{"a": "of another"}')
    wait(lambda: "Changed elsewhere" in text(driver), "the notice of the watch")
    click(driver, "Save over revision 1")
    wait(lambda: "Conflict" in text(driver) and "of another" in text(driver), "the conflict")
    driver.get_log("browser")  # the status 409 is logged there
    with slipstream.connect_blocking(server.url) as client:
        assert client.jetstream().key_value("settings").get("theme").value == b'{"a": "of another"}'
    click(driver, "Load theirs")
    wait(lambda: "of another" in driver.find_element("css selector", ".entry pre").text, "the value of the other")
    check(driver)


def test_a_configuration_is_changed_after_its_difference_was_shown(driver: Any, server: Target) -> None:
    show(driver, "#/streams/ORDERS", "Configuration")
    open_details(driver, "main summary")
    field = "document.querySelector('textarea')"
    driver.execute_script(f"{field}.value = {field}.value.replace('\"max_msgs\": -1', '\"max_msgs\": 99999')")
    click(driver, "Review the change")
    wait(lambda: driver.find_elements("css selector", ".diff .add, .diff .del"), "the difference")
    assert [line.text for line in driver.find_elements("css selector", ".diff .add")] == ['+   "max_msgs": 99999,']
    with slipstream.connect_blocking(server.url) as client:
        assert client.jetstream().stream("ORDERS").info().config.max_msgs == -1
        click(driver, "Change it")
        wait(lambda: client.jetstream().stream("ORDERS").info().config.max_msgs == 99999, "the change")
    check(driver)


def test_a_consumer_is_paused_and_reset_after_a_question(driver: Any, server: Target) -> None:
    with slipstream.connect_blocking(server.url) as client:
        consumer = client.jetstream().stream("ORDERS").consumer("workers")
        for message in consumer.fetch(20):
            message.ack_sync()
        show(driver, "#/consumers/ORDERS/workers", "Acknowledged up to")
        click(driver, "Pause")
        wait(lambda: consumer.info().paused, "the pause")
        click(driver, "Resume")
        wait(lambda: not consumer.info().paused, "the end of the pause")
        driver.find_element("css selector", "main form input").send_keys("5\n")
        wait(lambda: "delivered again" in text(driver), "the question")
        assert consumer.info().ack_floor.stream_seq == 20
        driver.switch_to.active_element.send_keys(ESCAPE)
        wait(
            lambda: not driver.execute_script("return document.querySelector('dialog').open"), "the end of the question"
        )
        assert consumer.info().ack_floor.stream_seq == 20
        click(driver, "Reset")
        click(driver, "Reset", "//dialog")
        wait(lambda: consumer.info().ack_floor.stream_seq == 4, "the reset")
    check(driver)


def test_objects_are_uploaded_previewed_and_downloaded(driver: Any, server: Target, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("first line\n" * 50_000, "utf-8")
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path / "got")})
    show(driver, "#/objects/files", "Download")
    driver.find_element("css selector", "input[type=file]").send_keys(str(file))
    click(driver, "Upload")
    wait(lambda: driver.find_elements("xpath", "//main//button[.='notes.txt']"), "the object")
    click(driver, "notes.txt")
    wait(lambda: "first line" in text(driver), "the preview")
    with slipstream.connect_blocking(server.url) as client:
        assert client.jetstream().object_store("files").get_bytes("notes.txt") == file.read_bytes()
    driver.execute_script("document.querySelector('.split > :last-child .progress button').click()")
    got = tmp_path / "got" / "notes.txt"
    wait(lambda: got.exists() and got.stat().st_size == file.stat().st_size, "the download")
    check(driver)


def test_a_held_replica_is_seen_behind_trusted_reads(driver: Any, server: Target) -> None:
    show(driver, "#/trust/ORDERS", "min_last_seq")
    driver.find_element("css selector", "main form input").send_keys("orders.2\n")
    wait(lambda: "none was stale" in text(driver), "the reads")
    if server.faults:
        click(driver, "Hold")
        wait(lambda: driver.find_elements("xpath", "//main//button[.='Release']"), "the held replica")
        with slipstream.connect_blocking(server.url) as client:
            newest = client.jetstream().publish("orders.2", b"newer").seq
        for _ in range(20):  # the held one answers a third of the plain reads
            click(driver, "Read")
            wait(lambda: f"sequence {newest:,}" in text(driver), "the trusted read")
            if "were stale" in text(driver):
                break
        assert "were stale" in text(driver)
        click(driver, "Release")
        wait(lambda: not driver.find_elements("xpath", "//main//button[.='Release']"), "no held replica")
    else:
        assert "--faults" in text(driver)
    check(driver)


def test_a_pipeline_is_drawn_moves_and_its_letters_are_replayed(driver: Any, server: Target) -> None:
    show(driver, "#/pipelines", "ORDERS_DEAD")
    names = [one.text for one in driver.find_elements("css selector", ".graph .name")]
    assert names == ["orders", "per_customer", "customers", "history", "ORDERS_DEAD"]
    assert len(driver.find_elements("css selector", ".graph .flow")) == 4
    wait(lambda: "4,000" in text(driver), "the rows")
    server.go_on(4_777)
    wait(lambda: "4,777" in text(driver), "the rows that were added")
    with slipstream.connect_blocking(server.url) as client:
        js = client.jetstream()
        before = js.stream("ORDERS").info().state.last_seq
        click(driver, "does not fit")
        click(driver, "Replay", "//main//*[@class='body']")
        wait(lambda: js.stream("ORDERS_DEAD").info().state.messages == 2, "the letter that was replayed")
        assert js.stream("ORDERS").get(before + 1).data == EVIL.encode()
        wait(lambda: "2 dead letters" in text(driver), "the letters that are left")
        click(driver, "Replay all")
        wait(lambda: "Replay all dead letters?" in text(driver), "the question")
        click(driver, "Replay all", "//dialog")
        wait(lambda: js.stream("ORDERS_DEAD").info().state.messages == 0, "no letters")
        assert js.stream("ORDERS").info().state.last_seq == before + 3
    wait(lambda: "No dead letters" in text(driver), "the empty list")
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
        "#/consumers": "workers", "#/consumers/ORDERS/workers": "Acknowledged", "#/kv": "settings",
        "#/kv/settings/theme": "History", "#/objects/files": "Download", "#/trust/ORDERS": "min_last_seq",
        "#/pipelines": "ORDERS_DEAD",
    }.items():  # fmt: skip
        show(driver, address, expected)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, address
        picture = PICTURES.get((address, scheme, width))
        if picture and os.environ.get("SLIPSTREAM_PICTURES"):
            time.sleep(5)  # plots need some samples
            taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 82})
            (ASSETS / f"console-{picture}.webp").write_bytes(base64.b64decode(taken["data"]))
    colour = driver.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (colour == "rgb(246, 247, 248)") == (scheme == "light")
    check(driver)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_text_has_enough_contrast_in_both_schemes(driver: Any) -> None:
    show(driver, "#/streams/ORDERS", "Configuration")
    for scheme in ("light", "dark"):
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        ratios = driver.execute_script(
            """
            const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
            const light = (text) => { const [r, g, b] = rgb(text).map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
            const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
            const panel = getComputedStyle(document.querySelector('.panel')).backgroundColor;
            return ['.panel h2', 'dt', 'dd', 'th', 'td a', 'nav a', '.badge'].map((css) => [css, document.querySelector(css)]).filter(([, one]) => one).map(([css, one]) => [css, ratio(getComputedStyle(one).color, panel)]);
            """  # noqa: E501
        )
        assert len(ratios) >= 6
        assert {css: round(ratio, 1) for css, ratio in ratios if ratio < 4.5} == {}, scheme


def test_the_keyboard_is_enough(driver: Any) -> None:
    show(driver, "#/", "Busiest")
    driver.find_element("css selector", "body").send_keys("3")
    wait(lambda: "Of which stream?" in text(driver), "the view of key 3")
    for _ in range(30):
        driver.switch_to.active_element.send_keys(TAB)
        if driver.switch_to.active_element.text == "ORDERS":
            break
    driver.switch_to.active_element.send_keys(ENTER)
    wait(lambda: len(driver.find_elements("css selector", ".msg")) == 50, "the messages")
    driver.find_element("css selector", "body").send_keys("/")
    assert driver.switch_to.active_element.get_attribute("aria-label") == "Subject filter"
    driver.execute_script("document.activeElement.blur()")
    first = driver.find_element("css selector", ".msg .seq").text
    driver.find_element("css selector", "body").send_keys("[")
    wait(lambda: driver.find_element("css selector", ".msg .seq").text != first, "the older page")
    row = driver.find_element("css selector", ".msg > button")
    driver.execute_script("arguments[0].focus()", row)
    row.send_keys(DOWN)
    second = driver.switch_to.active_element
    assert second.get_attribute("aria-expanded") == "false"
    second.send_keys(ENTER)
    wait(lambda: second.get_attribute("aria-expanded") == "true", "the open message")
    driver.find_element("css selector", "body").send_keys("?")
    wait(lambda: driver.execute_script("return document.querySelector('dialog').open"), "the list of keys")
    driver.switch_to.active_element.send_keys(ESCAPE)
    wait(lambda: not driver.execute_script("return document.querySelector('dialog').open"), "no dialog")
    check(driver)


def test_errors_and_absence_are_told_in_words(driver: Any) -> None:
    show(driver, "#/streams/NONE", "no stream is called")
    show(driver, "#/messages/NONE", "no stream is called")
    show(driver, "#/kv/none", "Try again")
    show(driver, "#/consumers/ORDERS/none", "has no consumer")
    show(driver, "#/messages/ORDERS/nothing.like.this", "No message here")
    driver.get_log("browser")  # statuses 404 are logged there
    assert driver.execute_script("return window.pwned") is None


def test_a_console_that_ended_is_told_and_no_request_left_the_machine(driver: Any, site: Site) -> None:
    show(driver, "#/", "Busiest")
    driver.delete_all_cookies()  # as of a console that was started again
    show(driver, "#/kv", "console that has ended")
    asked = set()
    for line in driver.get_log("performance"):
        event = json.loads(line["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            asked.add(event["params"]["request"]["url"])
    assert asked
    # `data:` is an icon of the browser's own controls, `blob:` a download that the page has made: no requests.
    assert {address for address in asked if not address.startswith((site.base, "data:", "blob:"))} == set()
