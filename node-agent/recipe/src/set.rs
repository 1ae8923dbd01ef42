//! All recipes of a folder, found by name or alias.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::MAX_RECIPE_BYTES;
use crate::error::RecipeError;
use crate::file;
use crate::name::nearest_names;
use crate::recipe::Recipe;

/// The most files that are read from one folder: a bound on what a user's folder can cost `sbatch`.
const MAX_FILES: usize = 1000;

/// The recipes of one folder, by name. [`RecipeSet::default`] has none.
#[derive(Debug, Clone, Default)]
pub struct RecipeSet {
    recipes: BTreeMap<String, Recipe>,
    /// Alias to name.
    aliases: BTreeMap<String, String>,
    /// Where each recipe came from, by name.
    origins: BTreeMap<String, PathBuf>,
}

impl RecipeSet {
    /// Reads all `*.toml` of a folder, in the order of their names. A file that does not hold costs its own recipes and
    /// an error, the others are there all the same; a folder that does not exist is an empty set.
    pub fn load(dir: &Path) -> (RecipeSet, Vec<RecipeError>) {
        let mut set = RecipeSet::default();
        let mut errors = Vec::new();
        let mut files = match toml_files(dir) {
            Ok(files) => files,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return (set, errors),
            Err(e) => {
                errors.push(RecipeError::new(
                    dir,
                    None,
                    format!("the folder of recipes can't be read: {e}"),
                ));
                return (set, errors);
            }
        };
        if files.len() > MAX_FILES {
            let what = format!(
                "{} recipe files are more than {MAX_FILES}; the rest is not read",
                files.len()
            );
            errors.push(RecipeError::new(dir, None, what));
            files.truncate(MAX_FILES);
        }
        for path in files {
            match read(&path).and_then(|text| file::parse_with_lines(&text, &path)) {
                Ok(found) => {
                    for (line, recipe) in found {
                        if let Err(e) = set.insert(recipe, &path, Some(line)) {
                            errors.push(e);
                        }
                    }
                }
                Err(e) => errors.push(e),
            }
        }
        (set, errors)
    }

    /// Adds one recipe. Names and aliases are one space: whichever came first keeps it.
    fn insert(&mut self, recipe: Recipe, origin: &Path, line: Option<usize>) -> Result<(), RecipeError> {
        for name in std::iter::once(&recipe.name).chain(&recipe.aliases) {
            if let Some(holder) = self.get(name) {
                let other = self
                    .origins
                    .get(&holder.name)
                    .map(PathBuf::as_path)
                    .unwrap_or(Path::new("?"));
                return Err(RecipeError::new(
                    origin,
                    line,
                    format!(
                        "{name} is already a name of {} in {}; rename one of them",
                        holder.name,
                        other.display()
                    ),
                ));
            }
        }
        for alias in &recipe.aliases {
            self.aliases.insert(alias.clone(), recipe.name.clone());
        }
        self.origins.insert(recipe.name.clone(), origin.to_path_buf());
        self.recipes.insert(recipe.name.clone(), recipe);
        Ok(())
    }

    /// The recipe of this name or alias.
    pub fn get(&self, name: &str) -> Option<&Recipe> {
        self.recipes
            .get(name)
            .or_else(|| self.recipes.get(self.aliases.get(name)?))
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Recipe> {
        self.recipes.values()
    }

    /// The file that a recipe came from, by its name or alias.
    pub fn origin(&self, name: &str) -> Option<&Path> {
        self.origins.get(&self.get(name)?.name).map(PathBuf::as_path)
    }

    /// Names and aliases that look most like this one, best first, at most three.
    pub fn nearest(&self, name: &str) -> Vec<String> {
        nearest_names(
            name,
            self.recipes.keys().chain(self.aliases.keys()).map(String::as_str),
        )
    }
}

fn toml_files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, RecipeError> {
    let fault = |what: String| RecipeError::new(path, None, what);
    // Looked at before it is opened: opening a FIFO would wait for ever.
    let about = fs::metadata(path).map_err(|e| fault(format!("can't be read: {e}")))?;
    if !about.is_file() {
        return Err(fault("is no regular file".into()));
    }
    let file = fs::File::open(path).map_err(|e| fault(format!("can't be read: {e}")))?;
    let mut text = String::new();
    // One byte more than allowed, so that a longer file shows.
    let read = file.take(MAX_RECIPE_BYTES as u64 + 1).read_to_string(&mut text);
    read.map_err(|e| fault(format!("can't be read: {e}")))?;
    if text.len() > MAX_RECIPE_BYTES {
        return Err(fault(format!("is longer than {} KiB", MAX_RECIPE_BYTES / 1024)));
    }
    Ok(text)
}
