//! The directory: who may use it, and the file in it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::Database;
use tallygate::MemoryStore;
use tallygate::store::MemoryStoreBuilder;

use crate::error::OpenError;
use crate::file::{self, Opener, Problem};
use crate::saver::Saver;

const FILE: &str = "tallygate.redb";
/// Until it is whole.
const NEW_FILE: &str = "tallygate.redb.new";
const LOCK: &str = "lock";

/// Opens a directory, which is created if there is none, and takes back the store that was saved in it. Until the saver is dropped, no
/// other process can open it.
///
/// The file contains the secret by which keys are hashed, and the subjects of open holds: on Unix only its owner can read it.
pub fn open(path: impl AsRef<Path>, builder: MemoryStoreBuilder) -> Result<(MemoryStore, Saver), OpenError> {
    Directory::lock(path.as_ref(), file::opener())?.load(builder)
}

/// A directory that no other process uses.
pub(crate) struct Directory {
    path: PathBuf,
    open: Opener,
    /// Locked until it is closed, also if the process is killed.
    _lock: File,
}

impl Directory {
    pub(crate) fn lock(path: &Path, open: Opener) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Unusable { path: path.to_owned(), source };
        private_directory(path).map_err(unusable)?;
        let lock = private_file(&path.join(LOCK), false).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), open, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    pub(crate) fn load(self, builder: MemoryStoreBuilder) -> Result<(MemoryStore, Saver), OpenError> {
        let loaded = || {
            self.create_if_missing()?;
            let mut database = self.database()?;
            let store = file::load(&mut database, builder)?;
            Ok((store, database))
        };
        // A file that was changed by something else may break what redb takes for granted.
        let loaded = catch_unwind(AssertUnwindSafe(loaded));
        let loaded = loaded.unwrap_or_else(|_| Err(Problem::Damaged("its pages contradict each other".to_owned())));
        match loaded {
            Ok((store, database)) => Ok((store, Saver::new(self, database))),
            Err(problem) => Err(self.error(problem)),
        }
    }

    fn error(&self, problem: Problem) -> OpenError {
        let file = self.path.join(FILE);
        match problem {
            Problem::InUse => OpenError::InUse { path: self.path.clone() },
            Problem::Io(source) => OpenError::Unusable { path: self.path.clone(), source },
            Problem::Newer(found) => OpenError::Newer { path: file, found },
            Problem::Damaged(problem) => OpenError::Damaged { path: file, problem },
        }
    }

    /// The file gets its name when it is whole: a crash meanwhile leaves none.
    fn create_if_missing(&self) -> Result<(), Problem> {
        let (file, new) = (self.path.join(FILE), self.path.join(NEW_FILE));
        if file.try_exists().map_err(Problem::Io)? {
            return Ok(());
        }
        file::create(&self.open, private_file(&new, true).map_err(Problem::Io)?)?;
        fs::rename(&new, &file).map_err(Problem::Io)?;
        // The name, too, must survive a power failure.
        #[cfg(unix)]
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(Problem::Io)?;
        Ok(())
    }

    pub(crate) fn database(&self) -> Result<Database, Problem> {
        // Not created here: a file that has vanished is not replaced by an empty one.
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(FILE)).map_err(Problem::Io)?;
        if file.metadata().map_err(Problem::Io)?.len() == 0 {
            return Err(Problem::Damaged("it is empty".to_owned()));
        }
        Ok((self.open)(file)?)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        fs::metadata(self.path.join(FILE)).map_or(0, |file| file.len())
    }
}

fn private_directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn private_file(path: &Path, truncate: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(truncate);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
