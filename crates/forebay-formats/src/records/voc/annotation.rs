//! Parses the annotation of an image: an XML file with the size of the image and its objects.

use crate::voc_xml::{self, Sides, number, set_side};

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
    sides: Sides,
}

/// Parses an annotation. Errors name the element.
pub(super) fn parse(xml: &[u8]) -> Result<Annotation, String> {
    let mut found = Annotation::default();
    let mut size = [None; 2];
    let mut open = Open::default();
    let mut sides = Vec::new();
    let mut is_annotation = false;
    voc_xml::walk(xml, true, |names, text| {
        match names {
            ["annotation"] => is_annotation = true,
            ["annotation", "filename"] => text.trim().clone_into(&mut found.filename),
            ["annotation", "size", "width"] => size[0] = Some(number(text)?),
            ["annotation", "size", "height"] => size[1] = Some(number(text)?),
            ["annotation", "object"] => {
                if found.objects.len() == MAX_OBJECTS {
                    return Err(format!("it has more than {MAX_OBJECTS} objects"));
                }
                let done = std::mem::take(&mut open);
                sides.push(done.sides);
                found.objects.push(done.object);
            }
            ["annotation", "object", inner @ ..] => open.set(inner, text)?,
            _ => {}
        }
        Ok(())
    })?;
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
            ["bndbox", side] => set_side(&mut self.sides, side, text)?,
            _ => {}
        }
        Ok(())
    }
}

/// Returns a box as fractions of the image size, as TensorFlow's tools compute it: coordinates divided by width and height.
fn corners(sides: Sides, size: [Option<f64>; 2]) -> Result<[f32; 4], String> {
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

fn flag(text: &str) -> Result<bool, String> {
    match text.trim() {
        "" | "0" => Ok(false),
        "1" => Ok(true),
        other => Err(format!("{other:?} is neither 0 nor 1")),
    }
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
