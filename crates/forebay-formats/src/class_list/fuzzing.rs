//! Invariants of class lists for arbitrary bytes.

use super::*;

/// Parses a list of classes and, after a NUL byte, a file with the classes of validation images.
pub fn classes(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let list = parts.next().unwrap_or_default();
    let solution = parts.next().unwrap_or_default();
    let lines = parse(list);
    for line in &lines {
        assert!(!line.name.is_empty() && !line.name.contains(&b'\n'));
    }
    let twice = ClassList::new(lines.clone(), None).is_err();
    let (classes, files) = synset_labels(lines.clone(), "list".into()).unwrap();
    assert_eq!(files.is_some(), twice);
    for (number, class) in (0..).zip(classes.iter()) {
        assert_eq!(classes.index_of(&class.name), Some(number));
        assert_eq!(classes.get(number), Some(class));
    }
    if let Some(files) = files {
        let count = lines.len() as u64;
        let found = files.of(&classes, count, std::iter::empty()).unwrap();
        for (line, class) in lines.iter().zip(found) {
            assert_eq!(classes.index_of(&line.name), Some(class));
        }
    }
    let origin = Path::new("solution");
    match validation_solution(solution, &classes, origin) {
        Ok(found) => {
            for (name, class) in &found {
                assert!(classes.get(*class).is_some());
                let name = [&name[..], b".JPEG"].concat();
                if stem(&name).len() + 5 == name.len() {
                    assert_eq!(class_by_stem(&found, &name, origin).unwrap(), *class);
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let numbered = FileClasses::by_number(
        "truth".into(),
        classes.iter().map(|class| class.name.clone()).collect(),
        solution.iter().map(|byte| u16::from(*byte)).collect(),
    );
    let _ = numbered.of(&classes, 1, std::iter::once(list));
}
