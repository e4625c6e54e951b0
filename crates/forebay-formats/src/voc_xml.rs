//! Walks the XML of Pascal VOC annotations.

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, Event};

/// Deepest nesting of elements.
const MAX_DEPTH: usize = 32;

/// The corners of a box in pixels: xmin, ymin, xmax, ymax.
pub(crate) type Sides = [Option<f64>; 4];

/// Calls `ended` at the end of each element, except for empty ones (`<a/>`), with the names of the elements from the root to
/// it, and the text since the last tag. Returns whether there are elements. With `knows_entities`, entities are resolved and
/// unknown ones refused, otherwise they are ignored.
pub(crate) fn walk(
    xml: &[u8],
    knows_entities: bool,
    mut ended: impl FnMut(&[&str], &str) -> Result<(), String>,
) -> Result<bool, String> {
    let mut reader = Reader::from_reader(xml);
    let mut path: Vec<String> = Vec::new();
    let mut text = String::new();
    let mut has_elements = false;
    loop {
        let at = reader.buffer_position();
        let fail = |what: String| format!("offset {at}: {what}");
        let event = reader
            .read_event()
            .map_err(|error| fail(error.to_string()))?;
        match event {
            Event::Start(start) => {
                has_elements = true;
                text.clear();
                path.push(String::from_utf8_lossy(start.name().as_ref()).into_owned());
                if path.len() > MAX_DEPTH {
                    return Err(fail("elements nest too deep".to_owned()));
                }
            }
            Event::Text(more) => {
                text.push_str(&more.decode().map_err(|error| fail(error.to_string()))?);
            }
            Event::CData(more) => {
                text.push_str(&more.decode().map_err(|error| fail(error.to_string()))?);
            }
            Event::GeneralRef(reference) if knows_entities => {
                text.push(character(&reference).map_err(fail)?);
            }
            Event::End(_) => {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                ended(&names, &text).map_err(fail)?;
                path.pop();
                text.clear();
            }
            Event::Empty(_) => has_elements = true,
            Event::Eof if !path.is_empty() => return Err(fail("it is cut short".to_owned())),
            Event::Eof => return Ok(has_elements),
            _ => {}
        }
    }
}

/// Sets the side of a box with this name, if it is one.
pub(crate) fn set_side(sides: &mut Sides, name: &str, text: &str) -> Result<(), String> {
    let names = ["xmin", "ymin", "xmax", "ymax"];
    if let Some(at) = names.iter().position(|known| *known == name) {
        sides[at] = Some(number(text)?);
    }
    Ok(())
}

/// Parses a finite number.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
    value.ok_or_else(|| format!("{text:?} is not a number"))
}

/// Resolves a predefined XML entity or a character reference.
fn character(reference: &BytesRef<'_>) -> Result<char, String> {
    let by_number = reference.resolve_char_ref();
    if let Some(found) = by_number.map_err(|error| error.to_string())? {
        return Ok(found);
    }
    let name = reference.decode().map_err(|error| error.to_string())?;
    let found = resolve_predefined_entity(&name).and_then(|text| text.chars().next());
    found.ok_or_else(|| format!("the entity {name:?} is not one of XML's own"))
}
