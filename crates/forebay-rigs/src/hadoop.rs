//! `Hadoop`: Hadoop's own client, which PySpark brings.

use crate::child::{find, skipped};
use std::path::PathBuf;
use std::process::Command;

/// The command line of Hadoop's file systems.
#[derive(Debug)]
pub struct Hadoop {
    java: PathBuf,
    jars: PathBuf,
}

impl Hadoop {
    /// Finds Java, and PySpark's jars in the environment that `tools/test full` creates; `None` if one is missing.
    pub fn find() -> Option<Self> {
        let found = || {
            let python = find("python")?;
            let libraries = python.parent()?.with_file_name("lib").read_dir().ok()?;
            let mut jars = libraries
                .flatten()
                .map(|version| version.path().join("site-packages/pyspark/jars"));
            Some(Self {
                java: find("java")?,
                jars: jars.find(|jars| jars.is_dir())?,
            })
        };
        let found = found();
        if found.is_none() {
            skipped("Java or PySpark");
        }
        found
    }

    /// Runs a command such as `-ls /`, whose paths are below the file system at `url`; returns its output.
    ///
    /// # Panics
    /// If the command fails.
    pub fn run(&self, url: &str, arguments: &[&str]) -> String {
        let settings = tempfile::tempdir().expect("a temporary directory");
        let site = format!(
            "<configuration><property><name>fs.defaultFS</name><value>{url}</value></property></configuration>"
        );
        std::fs::write(settings.path().join("core-site.xml"), site).expect("a file");
        let classes = format!("{}:{}/*", settings.path().display(), self.jars.display());
        let done = Command::new(&self.java)
            .args(["-cp", &classes, "org.apache.hadoop.fs.FsShell"])
            .args(arguments)
            .output()
            .expect("Java runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}
