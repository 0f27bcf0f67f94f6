"""The page of `mtx serve` in a browser: by mouse and by keyboard, in its states, in both colour schemes, on a phone."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from mtx.serve.server import Limits, Server, http_server
from mtx.serve.translation import Pairs, TranslationQueue
from tests.browser.conftest import Open
from tests.unit.serve.fakes import Sure, Upper

pytestmark = pytest.mark.extended

KEY = "0123456789abcdef"
HOSTILE = "<img src=x onerror=alert(1)> a dog"


@contextlib.contextmanager
def served(*translators: Upper, keys: tuple[str, ...] = (), **limits: Any) -> Iterator[str]:
    """The address of a server."""
    values, listener = Limits(**limits), socket.create_server(("127.0.0.1", 0))
    with TranslationQueue(values.batch_tokens, values.waiting_s) as queue:
        server = http_server(Server(Pairs(translators), queue, keys, values).app(), values)
        thread = threading.Thread(target=server.run, args=[[listener]])
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture
def address() -> Iterator[str]:
    with served(Upper("en", "de"), Upper("de", "en"), Upper("en", "fr"), chars=60) as address:
        yield address


def output(page: Any) -> Any:
    return page.get_by_role("group", name="Translation")


def wait_for_translation(page: Any) -> None:
    page.locator("#output[aria-busy=false]:not(.is-stale)[tabindex='0']").wait_for()


def translate(page: Any, text: str) -> None:
    page.get_by_label("Text to translate").fill(text)
    page.keyboard.press("Control+Enter")
    wait_for_translation(page)


def test_text_is_translated_by_button_and_key(open_page: Open, address: str) -> None:
    page = open_page(address)
    button = page.get_by_role("button", name="Translate", exact=True)
    assert button.is_disabled() and output(page).inner_text() == "The translation appears here"
    page.keyboard.type("a dog\nruns")
    button.click()
    wait_for_translation(page)
    assert output(page).inner_text() == "A DOG\nRUNS" and page.get_by_role("status").inner_text() == "Translated"
    translate(page, HOSTILE)
    assert output(page).inner_text() == HOSTILE.replace("a dog", "A DOG"), "text is never markup"
    page.get_by_role("button", name="Clear").click()
    assert output(page).inner_text() == "The translation appears here" and page.locator("#text").input_value() == ""


def test_a_change_of_the_text_dims_the_translation(open_page: Open, address: str) -> None:
    page = open_page(address)
    translate(page, "a dog")
    page.keyboard.type("s")
    page.locator("#output.is-stale").wait_for()
    page.keyboard.press("Backspace")
    assert page.locator("#output.is-stale").count() == 0


def test_an_alternative_takes_the_place(open_page: Open, address: str) -> None:
    page = open_page(address)
    translate(page, "a dog")
    others = page.locator("#alternatives").get_by_role("button")
    assert others.all_inner_texts() == ["A DOG!", "A DOG!!"]
    others.last.click()
    assert output(page).inner_text() == "A DOG!!" and others.all_inner_texts() == ["A DOG", "A DOG!"]


def test_the_text_area_is_as_high_as_its_text(open_page: Open, address: str) -> None:
    page = open_page(address, viewport={"width": 400, "height": 800})
    translate(page, "a red dog " * 6)
    boxes = page.evaluate("""["text", "mirror"].map((id) => {
        const box = document.getElementById(id).getBoundingClientRect();
        return [box.x, box.y, box.width, box.height];
    })""")
    assert boxes[0] == boxes[1] and boxes[0][3] > 100
    styles = page.evaluate("""["text", "mirror"].map((id) => {
        const style = getComputedStyle(document.getElementById(id));
        return [style.font, style.padding, style.whiteSpace, style.overflowWrap, style.letterSpacing];
    })""")
    assert styles[0] == styles[1]


def test_languages_swap_with_the_text(open_page: Open, address: str) -> None:
    page = open_page(address)
    source, target = page.get_by_label("Translate from"), page.get_by_label("Translate to")
    assert source.locator("option").all_text_contents() == ["Detect language", "English", "German"]
    assert target.locator("option").all_text_contents() == ["German", "French"]
    translate(page, "a dog")
    page.keyboard.press("Alt+KeyS")
    assert (source.input_value(), target.input_value()) == ("de", "en")
    assert page.locator("#text").input_value() == "A DOG"
    page.get_by_role("button", name="Swap the languages").click()
    assert (source.input_value(), target.input_value()) == ("en", "de")
    target.select_option("French")
    assert page.get_by_role("button", name="Swap the languages").is_disabled(), "nothing translates fr"
    source.select_option("German")
    assert target.locator("option").all_text_contents() == ["English"]


def test_the_language_is_detected(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.get_by_label("Translate from").select_option("Detect language")
    page.get_by_label("Translate to").select_option("English")
    translate(page, "das ist ein Haus")
    assert page.get_by_role("status").inner_text() == "Translated from German"


def test_too_long_a_text_is_counted_and_not_sent(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.get_by_label("Text to translate").fill("\U0001f600" * 60)
    assert page.locator("#count").inner_text() == "60 of 60"
    page.keyboard.type("abc")
    assert page.locator("#count.is-too-long").inner_text() == "3 characters too many"
    assert page.get_by_role("button", name="Translate", exact=True).is_disabled()
    page.keyboard.press("Control+Enter")
    assert output(page).inner_text() == "The translation appears here"


def test_what_is_suspicious_is_noted(open_page: Open, address: str) -> None:
    page = open_page(address)
    translate(page, "ALL IN CAPITALS")
    assert page.get_by_text("The translation is a copy of the text.").is_visible()
    translate(page, "a dog")
    assert page.locator("#note").is_hidden()


def test_lines_that_need_a_look_are_shaded(open_page: Open) -> None:
    with served(Sure()) as address:
        page = open_page(address)
        translate(page, "a\n\na dog\n<b>")
        assert output(page).inner_text() == "A\n\nA DOG\n<b>"
        shades = [
            each.evaluate("each => getComputedStyle(each).backgroundColor")
            for each in output(page).locator("span").all()
        ]
        assert [shade != "rgba(0, 0, 0, 0)" for shade in shades] == [True, False, False, False]
        assert output(page).locator("span").first.get_attribute("title") == "Expected quality 1 of 100"


@pytest.mark.parametrize("is_quick", [False, True])
def test_the_text_has_the_focus_unless_a_user_was_quicker(browser: Any, address: str, is_quick: bool) -> None:
    page = browser.new_page()
    logged = list[str]()
    page.on("console", lambda message: logged.append(message.text))
    if is_quick:
        page.add_init_script(
            "new MutationObserver(() => document.getElementById('target')?.focus())"
            ".observe(document, {childList: true, subtree: true})"
        )
    page.goto(address)
    page.wait_for_timeout(200)  # the browser focuses after it has drawn the page
    assert page.evaluate("document.activeElement.id") == ("target" if is_quick else "text")
    assert logged == []
    page.context.close()


def test_copying(open_page: Open, address: str) -> None:
    page = open_page(address, permissions=["clipboard-read", "clipboard-write"])
    translate(page, "a dog")
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "A DOG"


def test_while_it_translates_and_when_it_fails(browser: Any) -> None:
    translator = Upper()
    with served(translator) as address:
        page = browser.new_page()
        page.goto(address)
        page.get_by_label("Text to translate").fill("wait")
        page.keyboard.press("Control+Enter")
        page.locator("#output[aria-busy=true]").wait_for()
        assert page.get_by_role("status").inner_text() == "Translating…"
        translator.may_go_on.set()
        page.locator("#output[aria-busy=false]").wait_for()
        assert output(page).inner_text() == "WAIT"
        page.get_by_label("Text to translate").fill("fail")
        page.keyboard.press("Control+Enter")
        assert page.get_by_role("alert").inner_text() == "Internal server error; see the server's log"
        assert page.locator("#output[aria-busy=false]").count() == 1
    page.keyboard.press("Control+Enter")
    page.get_by_text("The server does not respond. Try again in a moment.").wait_for()
    page.context.close()


def test_a_key_is_asked_for(browser: Any) -> None:
    with served(Upper(), keys=(KEY,)) as address:
        page = browser.new_page()
        page.goto(address)
        page.get_by_label("Text to translate").fill("a dog")
        page.keyboard.press("Control+Enter")
        page.get_by_text("This server requires an API key").wait_for()
        assert page.get_by_label("API key").evaluate("key => key === document.activeElement")
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        wait_for_translation(page)
        assert output(page).inner_text() == "A DOG"
        page.reload()
        assert page.get_by_label("API key").input_value() == KEY
        page.context.close()


def test_colours_follow_the_scheme_and_a_phone_never_scrolls_sideways(open_page: Open, address: str) -> None:
    page = open_page(address, viewport={"width": 360, "height": 740}, color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(245, 246, 248)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == "rgb(15, 19, 24)"
    translate(page, "a" * 60)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = [page.locator(name).bounding_box() for name in ("#text", "#output")]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"], "one below the other"


def test_everything_has_a_name(open_page: Open, address: str) -> None:
    page = open_page(address)
    translate(page, "a dog")
    tree = page.locator("main").aria_snapshot()
    for name in (
        'heading "Translate"', 'combobox "Translate from"', 'combobox "Translate to"', 'button "Swap the languages"',
        'textbox "Text to translate"', 'region "Translation"', 'group "Translation"', 'button "Copy"', "status:",
        'heading "Other translations"',
    ):  # fmt: skip
        assert name in tree, tree


def test_a_language_with_a_hostile_name_is_text(browser: Any) -> None:
    name = "</script><script>document.title = 'run'</script>"
    with served(Upper("en", name)) as address:
        page = browser.new_page()
        page.goto(address)
        assert page.title() == "Translate" and page.get_by_label("Translate to").locator(
            "option"
        ).all_text_contents() == [name]
        policy = page.request.get(address).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; connect-src 'self'; img-src data:; style-src 'sha256-")
        assert "unsafe" not in policy and json.dumps(name) not in page.content()
        page.context.close()
