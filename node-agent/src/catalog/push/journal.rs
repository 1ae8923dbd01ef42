//! What was entered into a catalog that can't be read back: kept on disk, so that the next life takes out what this one entered. No keys.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::entry::{Entry, Row};
use super::http::Trouble;
use super::plan::Held;

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    id: String,
    /// Nobody knows whether it was entered.
    #[serde(default)]
    in_doubt: bool,
    name: String,
    entry: Entry,
}

/// Rows by id, and whether each is in doubt; on disk as in memory.
#[derive(Debug)]
pub struct Journal {
    file: PathBuf,
    rows: Mutex<Rows>,
}

type Rows = BTreeMap<String, (Row, bool)>;

impl Journal {
    /// Of the catalog called `name`. A file that can't be read is an error: what it says is still in the catalog.
    pub fn open(state_dir: &Path, name: &str) -> Result<Self, String> {
        let file = state_dir.join(format!("catalog-{name}.json"));
        let shown = file.display();
        let lines: Vec<Line> = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| format!("{shown}: {e}; what it named stays in the catalog unless you take it out; then remove the file"))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(format!("{shown}: {e}")),
        };
        let rows = lines.into_iter().map(|line| {
            let row = Row {
                id: line.id,
                name: line.name,
                entry: Arc::new(line.entry),
            };
            (row.id.clone(), (row, line.in_doubt))
        });
        let this = Self {
            rows: Mutex::new(rows.collect()),
            file,
        };
        // That it can't be written is better known now.
        this.save(&this.lock()).map_err(|e| e.to_string())?;
        Ok(this)
    }

    /// All rows.
    pub fn rows(&self) -> Vec<Row> {
        self.lock().values().map(|(row, _)| row.clone()).collect()
    }

    /// The same as a catalog would tell it.
    pub fn held(&self) -> Vec<Held> {
        let held = |(row, in_doubt): &(Row, bool)| Held {
            at: row.id.clone(),
            id: row.id.clone(),
            cluster: row.entry.cluster.clone(),
            node: row.entry.node.clone(),
            job_id: row.entry.job_id,
            // One in doubt is like no row that is wanted: it is taken out, then entered again.
            url: if *in_doubt {
                String::new()
            } else {
                row.entry.url.clone()
            },
            name: row.name.clone(),
            leaving: false,
        };
        self.lock().values().map(held).collect()
    }

    /// One of them.
    pub fn get(&self, id: &str) -> Option<Row> {
        self.lock().get(id).map(|(row, _)| row.clone())
    }

    /// Writes a row down. In doubt before it is entered, so that nothing is ever entered and forgotten; then for certain.
    pub fn put(&self, row: &Row, in_doubt: bool) -> Result<(), Trouble> {
        let mut rows = self.lock();
        rows.insert(row.id.clone(), (row.clone(), in_doubt));
        self.save(&rows)
    }

    /// Forgets a row: after it was taken out.
    pub fn forget(&self, id: &str) -> Result<(), Trouble> {
        let mut rows = self.lock();
        rows.remove(id);
        self.save(&rows)
    }

    fn save(&self, rows: &Rows) -> Result<(), Trouble> {
        let lines = rows.values().map(|(row, in_doubt)| Line {
            id: row.id.clone(),
            in_doubt: *in_doubt,
            name: row.name.clone(),
            entry: Entry::clone(&row.entry),
        });
        let text =
            serde_json::to_vec_pretty(&lines.collect::<Vec<_>>()).map_err(|e| Trouble::Own(e.to_string()))?;
        replace(&self.file, &text, 0o600)
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a file so that whoever reads it finds the old one or the new one, whole.
pub fn replace(file: &Path, bytes: &[u8], mode: u32) -> Result<(), Trouble> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    let own = |e: std::io::Error| Trouble::Own(format!("{}: {e}", file.display()));
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let next = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut open = std::fs::OpenOptions::new();
        let mut out = open
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&next)?;
        out.write_all(bytes)?;
        out.sync_all()?;
        std::fs::rename(&next, file)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&next);
    }
    written.map_err(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let model = slurm_serve_proto::v1::Model {
            generation: "7.0.1-ab".into(),
            name: "tiny".into(),
            base_url: "http://10.0.0.7:18100/v1".into(),
            ..Default::default()
        };
        Row::of(&Arc::new(Entry::of(&model, "s3cret").unwrap()))
    }

    #[test]
    fn the_next_life_knows_what_this_one_entered_but_not_its_key() {
        let folder = tempfile::tempdir().unwrap();
        Journal::open(folder.path(), "a")
            .unwrap()
            .put(&row(), false)
            .unwrap();
        let text = std::fs::read_to_string(folder.path().join("catalog-a.json")).unwrap();
        assert!(!text.contains("s3cret"), "{text}");
        let next = Journal::open(folder.path(), "a").unwrap();
        assert_eq!(next.held()[0].url, "http://10.0.0.7:18100");
        next.put(&row(), true).unwrap();
        assert_eq!(next.held()[0].url, "", "what is in doubt agrees with nothing");
        next.forget("7.0.1-ab").unwrap();
        assert!(Journal::open(folder.path(), "a").unwrap().rows().is_empty());
    }

    #[test]
    fn a_journal_that_is_none_is_said_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("catalog-a.json");
        std::fs::write(&file, "[{").unwrap();
        let why = Journal::open(folder.path(), "a").unwrap_err();
        assert!(why.contains("catalog-a.json") && !why.contains('\n'), "{why}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[{");
    }
}
