//! Parses the annotation of an image: an XML file with the size of the image and its objects.

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, Event};

/// Deepest nesting of elements.
const MAX_DEPTH: usize = 32;
/// Most objects of an image.
const MAX_OBJECTS: usize = 100_000;

/// An object in an annotation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Object {
    pub(super) name: String,
    /// (xmin, ymin, xmax, ymax) as fractions of width and height.
    pub(super) corners: [f32; 4],
    pub(super) is_difficult: bool,
    pub(super) is_truncated: bool,
    pub(super) is_occluded: bool,
    pub(super) pose: String,
}

/// The annotation of an image.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Annotation {
    /// The file name of the image in the annotation, which may be wrong.
    pub(super) filename: String,
    /// The width and height that boxes are relative to; `None` without objects.
    pub(super) size: Option<[f64; 2]>,
    pub(super) objects: Vec<Object>,
}

/// An object that is being parsed.
#[derive(Default)]
struct Open {
    object: Object,
    /// xmin, ymin, xmax, ymax in pixels.
    sides: [Option<f64>; 4],
}

/// Parses an annotation. Errors name the element.
pub(super) fn parse(xml: &[u8]) -> Result<Annotation, String> {
    let mut reader = Reader::from_reader(xml);
    let mut path: Vec<String> = Vec::new();
    let mut text = String::new();
    let mut found = Annotation::default();
    let mut size = [None; 2];
    let mut open = Open::default();
    let mut sides = Vec::new();
    let mut is_annotation = false;
    loop {
        let at = reader.buffer_position();
        let fail = |what: String| format!("offset {at}: {what}");
        let event = reader
            .read_event()
            .map_err(|error| fail(error.to_string()))?;
        match event {
            Event::Start(start) => {
                text.clear();
                path.push(String::from_utf8_lossy(start.name().as_ref()).into_owned());
                if path.len() > MAX_DEPTH {
                    return Err(fail("elements nest too deep".to_owned()));
                }
                is_annotation |= path == ["annotation"];
            }
            Event::Text(more) => {
                text.push_str(&more.decode().map_err(|error| fail(error.to_string()))?);
            }
            Event::CData(more) => {
                text.push_str(&more.decode().map_err(|error| fail(error.to_string()))?);
            }
            Event::GeneralRef(reference) => text.push(character(&reference).map_err(fail)?),
            Event::End(_) => {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                match names.as_slice() {
                    ["annotation", "filename"] => text.trim().clone_into(&mut found.filename),
                    ["annotation", "size", "width"] => size[0] = Some(number(&text).map_err(fail)?),
                    ["annotation", "size", "height"] => {
                        size[1] = Some(number(&text).map_err(fail)?)
                    }
                    ["annotation", "object"] => {
                        if found.objects.len() == MAX_OBJECTS {
                            return Err(fail(format!("it has more than {MAX_OBJECTS} objects")));
                        }
                        let done = std::mem::take(&mut open);
                        sides.push(done.sides);
                        found.objects.push(done.object);
                    }
                    ["annotation", "object", inner @ ..] => open.set(inner, &text).map_err(fail)?,
                    _ => {}
                }
                path.pop();
                text.clear();
            }
            Event::Eof if !path.is_empty() => return Err(fail("it is cut short".to_owned())),
            Event::Eof => break,
            _ => {}
        }
    }
    if !is_annotation {
        return Err("it has no element <annotation>".to_owned());
    }
    for (number, (object, sides)) in found.objects.iter_mut().zip(sides).enumerate() {
        let refused = |what: String| format!("object {number} ({:?}): {what}", object.name);
        if object.name.is_empty() {
            return Err(format!("object {number} has no <name>"));
        }
        object.corners = corners(sides, size).map_err(refused)?;
    }
    found.size = match (size, found.objects.is_empty()) {
        ([Some(width), Some(height)], false) => Some([width, height]),
        _ => None,
    };
    Ok(found)
}

impl Open {
    fn set(&mut self, path: &[&str], text: &str) -> Result<(), String> {
        let object = &mut self.object;
        match path {
            ["name"] => text.trim().clone_into(&mut object.name),
            ["pose"] => text.trim().clone_into(&mut object.pose),
            ["difficult"] => object.is_difficult = flag(text)?,
            ["truncated"] => object.is_truncated = flag(text)?,
            ["occluded"] => object.is_occluded = flag(text)?,
            ["bndbox", side] => {
                let names = ["xmin", "ymin", "xmax", "ymax"];
                if let Some(at) = names.iter().position(|name| name == side) {
                    self.sides[at] = Some(number(text)?);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns a box as fractions of the image size, as TensorFlow's tools compute it: coordinates divided by width and height.
fn corners(sides: [Option<f64>; 4], size: [Option<f64>; 2]) -> Result<[f32; 4], String> {
    let [Some(xmin), Some(ymin), Some(xmax), Some(ymax)] = sides else {
        return Err("it lacks one of xmin, ymin, xmax, ymax in <bndbox>".to_owned());
    };
    let [Some(width), Some(height)] = size else {
        return Err("the annotation has no <size> with width and height".to_owned());
    };
    if width < 1.0 || height < 1.0 {
        return Err(format!("an image of {width}x{height} has no boxes"));
    }
    if xmin > xmax || ymin > ymax {
        return Err(format!("its box is {xmin}, {ymin} to {xmax}, {ymax}"));
    }
    let fraction = |value: f64, size: f64| (value / size).clamp(0.0, 1.0) as f32;
    Ok([
        fraction(xmin, width),
        fraction(ymin, height),
        fraction(xmax, width),
        fraction(ymax, height),
    ])
}

fn number(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
    value.ok_or_else(|| format!("{text:?} is not a number"))
}

fn flag(text: &str) -> Result<bool, String> {
    match text.trim() {
        "" | "0" => Ok(false),
        "1" => Ok(true),
        other => Err(format!("{other:?} is neither 0 nor 1")),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<annotation><folder>VOC2007</folder><filename>a.jpg</filename>
        <source><database>x &amp; y</database></source>
        <size><width>200</width><height>100</height><depth>3</depth></size><segmented>0</segmented>
        <object><name>dog &#38; cat</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult>
          <bndbox><xmin>20</xmin><ymin>10</ymin><xmax>100</xmax><ymax>75.5</ymax></bndbox>
          <part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>
        <object><bndbox><xmax>210</xmax><xmin>-1</xmin><ymin>0</ymin><ymax>100</ymax></bndbox><difficult>1</difficult>
          <name>person</name></object></annotation>";

    #[test]
    fn objects_are_read_whatever_the_order_of_their_elements() {
        let found = parse(XML.as_bytes()).unwrap();
        assert_eq!(found.filename, "a.jpg");
        let first = Object {
            name: "dog & cat".to_owned(),
            corners: [0.1, 0.1, 0.5, 0.755],
            is_truncated: true,
            pose: "Left".to_owned(),
            ..Object::default()
        };
        let second = Object {
            name: "person".to_owned(),
            corners: [0.0, 0.0, 1.0, 1.0],
            is_difficult: true,
            ..Object::default()
        };
        assert_eq!(found.objects, [first, second]);
        assert_eq!(found.size, Some([200.0, 100.0]));
    }

    #[test]
    fn invalid_annotations_are_refused() {
        for (from, to, said) in [
            ("<xmin>20</xmin>", "", "lacks one of xmin"),
            (
                "<xmin>20</xmin>",
                "<xmin>nan</xmin>",
                "\"nan\" is not a number",
            ),
            (
                "<xmin>20</xmin>",
                "<xmin>120</xmin>",
                "its box is 120, 10 to 100, 75.5",
            ),
            ("<width>200</width>", "", "no <size>"),
            ("<width>200</width>", "<width>0</width>", "0x100"),
            ("<name>person</name>", "", "object 1 has no <name>"),
            ("<difficult>1<", "<difficult>2<", "\"2\" is neither 0 nor 1"),
            ("&amp;", "&lol;", "the entity \"lol\""),
            ("</object></annotation>", "", "cut short"),
            ("</annotation>", "</b>", "offset"),
        ] {
            let xml = XML.replace(from, to);
            let error = parse(xml.as_bytes()).unwrap_err();
            assert!(error.contains(said), "{to}: {error}");
        }
        assert!(parse(b"").unwrap_err().contains("<annotation>"));
        let deep = "<a>".repeat(40);
        assert!(parse(deep.as_bytes()).unwrap_err().contains("too deep"));
    }
}
