//! A preloaded library that moves one server's wall clock at run time. Its source is `shim/clock.c`.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiled library, and the file that holds the offset.
#[derive(Debug)]
pub(crate) struct ClockShim {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl ClockShim {
    pub(crate) fn compile(folder: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("shim/clock.c");
        let library = folder.join("clock.so");
        let output = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).args([&library, &source]).output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                panic!("cc could not compile {}: {}", source.display(), String::from_utf8_lossy(&output.stderr))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("no C compiler for the clock shim: `apt-get install gcc libc6-dev`")
            }
            Err(error) => panic!("cc: {error}"),
        }
        let path = folder.join("skew");
        let shim = Self { library, file: File::create(&path).unwrap(), path };
        shim.skew(0);
        shim
    }

    /// One aligned 8-byte write: the server sees the old offset or the new one.
    pub(crate) fn skew(&self, micros: i64) {
        self.file.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
    }

    pub(crate) fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("TALLYGATE_SKEW_FILE", &self.path);
    }
}
