//! The page of the viewer in a browser: the keyboard alone, hostile datasets, sizes and colors.

use super::Viewed;
use crate::browser;

/// A viewer and a page of a browser; `None` without a browser.
fn opened() -> Option<(Viewed, browser::Page)> {
    let Some(program) = browser::find() else {
        println!("skipped: no Chromium was found (FOREBAY_CHROMIUM names one)");
        return None;
    };
    Some((Viewed::start(), browser::Page::open(&program)))
}

#[test]
fn the_viewer_works_with_the_keyboard_alone() {
    let Some((viewed, mut page)) = opened() else {
        return;
    };
    page.resize(1280, 900, false);
    page.colours("light");
    page.go(&viewed.viewer.url());
    page.wait("document.querySelectorAll('.tile img').length >= 20");
    page.wait("document.querySelector('#state').textContent === 'all records read'");
    let until = |page: &mut browser::Page, id: &str| {
        for _ in 0..60 {
            if page.text("document.activeElement.id") == id {
                return;
            }
            page.press("Tab");
        }
        panic!("Tab does not reach {id}");
    };
    // A filter, by its first key; then the list of suspicious samples.
    page.press("/");
    for key in ["1", "/", "2", "4"] {
        page.press(key);
    }
    page.wait("document.querySelector('#count').textContent.startsWith('1 of 26')");
    page.number("(document.querySelector('#key').value = '', document.querySelector('#key').dispatchEvent(new Event('input')), 1)");
    page.wait("document.querySelector('#count').textContent === '26 samples'");
    page.number("(document.querySelector('#only').focus(), 1)");
    for key in ["n", "e", "a"] {
        page.press(key);
    }
    page.wait("document.querySelector('#count').textContent === '2 of 26 samples'");
    // The grid: move, pick, open, step, close.
    until(&mut page, "grid");
    page.press("ArrowRight");
    page.press(" ");
    page.wait("document.querySelector('#count').textContent.endsWith('1 picked')");
    let chosen = page.text("document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).getAttribute('aria-label')");
    assert!(chosen.contains("it looks like another sample"), "{chosen}");
    page.press("Enter");
    page.wait("document.querySelector('#sample').open && document.querySelector('#trained').naturalWidth === 224");
    page.wait("document.querySelector('#alike img')?.naturalWidth > 0");
    assert!(
        page.text("document.querySelector('#facts').innerText")
            .contains("record 9")
    );
    page.screenshot("view-sample");
    let before = page.text("document.querySelector('#trained').src");
    until(&mut page, "epoch");
    page.press("ArrowRight");
    page.wait("document.querySelector('#trained').src.includes('epoch=1')");
    assert_ne!(page.text("document.querySelector('#trained').src"), before);
    page.press("Escape");
    page.wait("!document.querySelector('#sample').open && document.activeElement.id === 'grid'");
    // The list of what was picked.
    page.number("(document.querySelector('#export').focus(), 1)");
    page.press("Enter");
    page.wait("document.querySelector('#exporting').open");
    assert_eq!(page.text("document.querySelector('#picked').value"), "[9]");
    assert!(page.complaints().is_empty(), "{:#?}", page.complaints());
}

#[test]
fn classes_of_boxes_are_listed_where_samples_have_none() {
    let Some((viewed, mut page)) = opened() else {
        return;
    };
    page.resize(1280, 900, false);
    page.go(&viewed.viewer.url());
    page.wait("document.querySelector('#state').textContent === 'all records read'");
    page.wait("document.querySelectorAll('.tile').length === 26 && summary.classes[1].boxes > 0");
    // As of a source whose samples have no labels.
    page.number("(summary.classes.forEach((one) => { one.records = 0; }), classes(), 1)");
    let dog = "[...document.querySelectorAll('#classes button')].find((button) => button.innerText.startsWith('dog'))";
    assert_eq!(
        page.text(&format!("{dog}.querySelector('.number').textContent")),
        "2"
    );
    for (count, pressed) in [("2 of 26 samples", "true"), ("26 samples", "false")] {
        page.number(&format!("({dog}.click(), 1)"));
        page.wait(&format!(
            "document.querySelector('#count').textContent === '{count}'"
        ));
        assert_eq!(
            page.text(&format!("{dog}.getAttribute('aria-pressed')")),
            pressed
        );
    }
    assert!(page.complaints().is_empty(), "{:#?}", page.complaints());
}

#[test]
fn screen_readers_find_names_for_everything() {
    let Some((viewed, mut page)) = opened() else {
        return;
    };
    page.resize(1280, 900, false);
    page.go(&viewed.viewer.url());
    page.wait("document.querySelectorAll('.tile').length === 26");
    page.wait("document.querySelector('#bytes-bars').getAttribute('aria-label')?.includes('from')");
    let check = |spoken: &[(String, String)]| {
        for (role, name) in spoken {
            let roles = [
                "button",
                "checkbox",
                "combobox",
                "option",
                "searchbox",
                "slider",
                "textbox",
                "image",
                "listbox",
            ];
            assert!(
                !roles.contains(&role.as_str()) || !name.is_empty(),
                "a {role} without a name: {spoken:#?}"
            );
        }
    };
    let has = |spoken: &[(String, String)], role: &str, part: &str| {
        assert!(
            spoken
                .iter()
                .any(|(r, name)| r == role && name.contains(part)),
            "no {role} {part:?}: {spoken:#?}"
        );
    };
    let spoken = page.spoken();
    check(&spoken);
    has(&spoken, "listbox", "Samples: arrows move");
    has(
        &spoken,
        "option",
        "1/24.png, 120 × 72, its class has few samples",
    );
    has(&spoken, "option", "it cannot be read or decoded");
    has(&spoken, "combobox", "Sort by");
    has(&spoken, "image", "bytes. from");
    page.number("(show(3), 1)");
    page.wait("document.querySelector('#trained').naturalWidth > 0");
    let spoken = page.spoken();
    check(&spoken);
    has(&spoken, "image", "Stored image of");
    has(&spoken, "slider", "Epoch");
    has(&spoken, "dialog", "0/3.png");
}

#[test]
fn hostile_datasets_run_no_script() {
    let Some((viewed, mut page)) = opened() else {
        return;
    };
    page.resize(1280, 900, false);
    page.go(&viewed.viewer.url());
    page.wait("document.querySelectorAll('.tile').length === 26");
    page.wait("document.querySelectorAll('.tile img').length >= 20");
    // Sample 5 has the bytes of a drawing with a script: it is not an image, and no browser gets it.
    page.wait("document.querySelector('#tile-5 .failed')");
    page.number("(show(7), 1)");
    page.wait("document.querySelector('#image').naturalWidth > 0");
    let told = page.text("document.querySelector('#sample').innerText");
    assert!(told.contains("<script>window.hacked=1</script>"), "{told}");
    page.number("(document.querySelector('#close').click(), document.querySelector('#side').open = true, 1)");
    assert!(
        page.text("document.querySelector('#classes').innerText")
            .contains("onerror")
    );
    let alive = page.text("[typeof window.hacked, document.scripts.length, document.querySelectorAll('img[onerror]').length].join()");
    assert_eq!(alive, "undefined,1,0");
    // A script that got in nevertheless would be refused by the policy, and could reach no other server.
    let injected = page.text(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.hacked = 1'; \
         document.body.append(script); return typeof window.hacked; })()",
    );
    assert_eq!(injected, "undefined");
    let outside =
        page.text("fetch('http://127.0.0.1:1/').then(() => 'sent', (error) => error.message)");
    assert_ne!(outside, "sent");
    let refused = page
        .complaints()
        .iter()
        .filter(|said| said.contains("Content Security Policy"));
    assert!(refused.count() >= 2, "{:#?}", page.complaints());
}

#[test]
fn the_viewer_fits_phones_and_both_colors() {
    let Some((viewed, mut page)) = opened() else {
        return;
    };
    for (width, name) in [(1440, "desktop"), (820, "tablet"), (360, "phone")] {
        page.resize(width, 780, width < 600);
        page.go(&viewed.viewer.url());
        page.wait("document.querySelectorAll('.tile img').length >= 4");
        page.wait("document.querySelector('#state').textContent === 'all records read'");
        page.number("(document.querySelector('#side').open = true, document.querySelector('#only').focus(), 1)");
        for colours in ["light", "dark"] {
            page.colours(colours);
            page.screenshot(&format!("view-{name}-{colours}"));
            let faint = page.text(browser::FAINT_TEXTS);
            assert_eq!(faint, "", "too little contrast at {width} in {colours}");
        }
        page.number("(show(3), 1)");
        page.wait("document.querySelector('#image').naturalWidth > 0 && document.querySelector('#trained').naturalWidth > 0");
        page.screenshot(&format!("view-{name}-sample"));
        let faint = page.text(browser::FAINT_TEXTS);
        assert_eq!(faint, "", "too little contrast at {width}");
        let wide = page.number("Math.max(document.documentElement.scrollWidth, document.querySelector('#sample').scrollWidth)");
        assert!(
            wide <= f64::from(width),
            "it is to be scrolled sideways: {wide} of {width}"
        );
    }
    assert!(page.complaints().is_empty(), "{:#?}", page.complaints());
}
