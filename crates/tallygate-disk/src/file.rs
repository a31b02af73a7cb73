//! The file of a data directory: one table of entries, and one that says what they are. All that knows redb.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageError,
    TableDefinition, TableError,
};
use tallygate::MemoryStore;
use tallygate::store::{MemoryStoreBuilder, RestoreError, SavedEntry, SavedKey, Secret};

const ENTRIES: TableDefinition<'_, &SavedKey, &[u8]> = TableDefinition::new("entries");
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

/// The version of the tables. Entries have their own.
const FORMAT: &[u8] = &[1];
/// Names of what is said about the entries.
const FORMAT_OF: &str = "format";
const SECRET: &str = "secret";
const PROBE: &str = "probe";

/// Memory for pages of the file. What is not in it is likely in the cache of the operating system.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

/// How a file becomes a database; tests put a disk that is full in between.
pub(crate) type Opener = Box<dyn Fn(File) -> Result<Database, DatabaseError> + Send>;

pub(crate) fn opener() -> Opener {
    Box::new(|file| Builder::new().set_cache_size(CACHE_BYTES).create_file(file))
}

/// What is to be written: `None` for what is to be deleted.
pub(crate) type Changes = HashMap<SavedKey, Option<Vec<u8>>>;

/// Why a file cannot be used.
#[derive(Debug)]
pub(crate) enum Problem {
    InUse,
    Io(io::Error),
    Newer(String),
    Damaged(String),
}

impl<E: Into<redb::Error>> From<E> for Problem {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged("it is too short".to_owned())
            }
            // Of a file that is not a database.
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => Self::Damaged(error.to_string()),
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            error => Self::Damaged(error.to_string()),
        }
    }
}

/// Makes a new file whole: its entries are none, and its secret is new.
pub(crate) fn create(open: &Opener, file: File) -> Result<(), Problem> {
    let database = open(file)?;
    let transaction = database.begin_write()?;
    {
        let mut about = transaction.open_table(ABOUT)?;
        about.insert(FORMAT_OF, FORMAT)?;
        about.insert(SECRET, &Secret::random().as_bytes()[..])?;
        transaction.open_table(ENTRIES)?;
    }
    Ok(transaction.commit()?)
}

/// Takes back what was saved. What no longer counts is deleted.
pub(crate) fn load(database: &mut Database, builder: MemoryStoreBuilder) -> Result<MemoryStore, Problem> {
    // Unless the last process has crashed, no checksum was looked at yet.
    database.check_integrity()?;
    let (mut gone, mut kept) = (Vec::new(), 0);
    let store = {
        let transaction = database.begin_read()?;
        let about = transaction.open_table(ABOUT).map_err(missing)?;
        let format = about.get(FORMAT_OF)?.map(|format| format.value().to_owned()).unwrap_or_default();
        if format != FORMAT {
            return Err(Problem::Newer(format!("its format is {format:?}, and this version knows {FORMAT:?}")));
        }
        let secret = about.get(SECRET)?.and_then(|secret| <[u8; Secret::BYTES]>::try_from(secret.value()).ok());
        let secret = secret.ok_or_else(|| Problem::Damaged("it has no secret".to_owned()))?;
        let mut restoring = builder.restore(&Secret::from_bytes(secret));
        for entry in transaction.open_table(ENTRIES).map_err(missing)?.iter()? {
            let (key, value) = entry?;
            match restoring.take(key.value(), value.value()) {
                Ok(true) => kept += 1,
                Ok(false) => gone.push(*key.value()),
                Err(error @ RestoreError::Newer { .. }) => return Err(Problem::Newer(error.to_string())),
                Err(error) => return Err(Problem::Damaged(error.to_string())),
            }
        }
        restoring.finish()
    };
    if gone.len() > kept {
        write(database, &gone.into_iter().map(|key| (key, None)).collect())?;
        // Most of the file is free, and it does not become shorter by itself.
        database.compact()?;
    } else if !gone.is_empty() {
        write(database, &gone.into_iter().map(|key| (key, None)).collect())?;
    }
    Ok(store)
}

fn missing(error: TableError) -> Problem {
    match error {
        TableError::Storage(StorageError::Io(error)) => Problem::Io(error),
        error => Problem::Damaged(error.to_string()),
    }
}

/// Writes changes in one transaction, which is on the disk when this returns. Returns the number of entries.
pub(crate) fn write(database: &Database, changes: &Changes) -> Result<u64, Problem> {
    // In their order: neighbours share pages.
    let mut changes: Vec<_> = changes.iter().collect();
    changes.sort_unstable_by_key(|(key, _)| **key);
    let transaction = database.begin_write()?;
    let entries = {
        let mut table = transaction.open_table(ENTRIES)?;
        for (key, value) in changes {
            match value {
                Some(value) => _ = table.insert(key, &value[..])?,
                None => _ = table.remove(key)?,
            }
        }
        table.len()?
    };
    transaction.commit()?;
    Ok(entries)
}

/// Writes everything in one transaction: only what differs from what is there. Returns the number of entries.
pub(crate) fn replace(database: &Database, all: Vec<SavedEntry>) -> Result<u64, Problem> {
    let mut all: HashMap<SavedKey, Vec<u8>> =
        all.into_iter().filter_map(|entry| Some((entry.key, entry.value?))).collect();
    let transaction = database.begin_write()?;
    let entries = {
        let mut table = transaction.open_table(ENTRIES)?;
        table.retain(|key, value| match all.get(key).map(|new| new == value) {
            Some(true) => all.remove(key).is_some(),
            Some(false) => true,
            None => false,
        })?;
        for (key, value) in &all {
            table.insert(key, &value[..])?;
        }
        table.len()?
    };
    transaction.commit()?;
    Ok(entries)
}

/// Writes next to nothing, to see whether that is possible.
pub(crate) fn probe(database: &Database) -> Result<(), Problem> {
    let transaction = database.begin_write()?;
    transaction.open_table(ABOUT)?.insert(PROBE, &[][..])?;
    Ok(transaction.commit()?)
}
