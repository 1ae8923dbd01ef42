//! All recipes of a folder, found by name or alias.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::MAX_RECIPE_BYTES;
use crate::error::RecipeError;
use crate::file;
use crate::name::{is_source, nearest_names};
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
        if let (true, Some(first)) = (recipe.is_template(), self.template()) {
            let what = format!(
                "source = \"*\" is what {} has already; there is one template",
                first.name
            );
            return Err(RecipeError::new(origin, line, what));
        }
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

    /// What `asked` means: a recipe by name or alias; or, for a path or a hub id, the template with that source. A template itself is nobody's
    /// model.
    pub fn find(&self, asked: &str) -> Option<Recipe> {
        if is_source(asked) {
            return Some(self.template()?.for_source(asked));
        }
        self.get(asked).filter(|recipe| !recipe.is_template()).cloned()
    }

    /// The recipe for models without one.
    pub fn template(&self) -> Option<&Recipe> {
        self.recipes.values().find(|recipe| recipe.is_template())
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
        let names = self.recipes.values().filter(|recipe| !recipe.is_template());
        let names = names.map(|recipe| recipe.name.as_str());
        nearest_names(name, names.chain(self.aliases.keys().map(String::as_str)))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        dir
    }

    #[test]
    fn a_folder_that_is_not_there_is_empty() {
        let (set, errors) = RecipeSet::load(Path::new("/nowhere/at/all"));
        assert_eq!((set.iter().count(), errors.len()), (0, 0));
    }

    #[test]
    fn recipes_are_found_by_name_and_alias_whatever_else_is_broken() {
        let dir = folder(&[
            (
                "gpt-oss-120b.toml",
                "source = 'openai/gpt-oss-120b'\naliases = ['gpt-oss']",
            ),
            (
                "many.toml",
                "[models.a]\nsource = 'o/a'\n[models.b]\nsource = 'o/b'",
            ),
            ("broken.toml", "sorce = 'o/x'"),
            ("notes.txt", "not a recipe"),
            (".hidden.toml", "not a recipe"),
        ]);
        let (set, errors) = RecipeSet::load(dir.path());
        let names: Vec<_> = set.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "gpt-oss-120b"]);
        assert_eq!(set.get("gpt-oss").map(|r| r.name.as_str()), Some("gpt-oss-120b"));
        assert_eq!(
            set.origin("gpt-oss"),
            Some(dir.path().join("gpt-oss-120b.toml").as_path())
        );
        assert!(set.get("x").is_none());
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let broken = dir.path().join("broken.toml");
        assert_eq!(
            lines,
            [format!(
                "{}:1: unknown key \"sorce\"; did you mean source?",
                broken.display()
            )]
        );
    }

    #[test]
    fn a_template_stands_in_for_paths_and_hub_ids_and_is_no_model_itself() {
        let dir = folder(&[
            (
                "any.toml",
                "source = '*'\ngpus = 2\naliases = []\n[catalog]\nteam = 't'",
            ),
            ("other.toml", "source = '*'"),
            ("tiny.toml", "source = 'o/tiny'"),
        ]);
        let (set, errors) = RecipeSet::load(dir.path());
        assert!(
            errors.len() == 1 && errors[0].to_string().contains("one template"),
            "{errors:?}"
        );
        let found = set.find("/data/My Model").expect("the template");
        assert_eq!(
            (found.name.as_str(), found.source.as_str(), found.gpus),
            ("My-Model", "/data/My Model", 2)
        );
        assert!(!found.publish.allows(&[]) && found.catalog.team.is_empty());
        assert!(set.find("any").is_none() && !set.nearest("any").contains(&"any".to_owned()));
        assert_eq!(
            set.find("tiny").map(|recipe| recipe.source),
            Some("o/tiny".into())
        );
        assert!(RecipeSet::default().find("/data/x").is_none());
    }

    #[test]
    fn a_name_taken_twice_names_both_files() {
        let dir = folder(&[
            ("1.toml", "name = 'a'\nsource = 'o/a'\naliases = ['x']"),
            ("2.toml", "[models.b]\nsource = 'o/b'\n[models.x]\nsource = 'o/x'"),
            ("3.toml", "name = 'c'\nsource = 'o/c'\naliases = ['a']"),
        ]);
        let (set, errors) = RecipeSet::load(dir.path());
        assert_eq!(
            set.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(),
            ["a", "b"]
        );
        let at = |file: &str| dir.path().join(file).display().to_string();
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                format!(
                    "{}:3: x is already a name of a in {}; rename one of them",
                    at("2.toml"),
                    at("1.toml")
                ),
                format!(
                    "{}:1: a is already a name of a in {}; rename one of them",
                    at("3.toml"),
                    at("1.toml")
                ),
            ]
        );
    }

    #[test]
    fn what_is_no_readable_file_is_an_error_and_no_wait() {
        let dir = folder(&[("long.toml", &"#".repeat(MAX_RECIPE_BYTES + 1))]);
        fs::create_dir(dir.path().join("folder.toml")).expect("a folder");
        fs::write(dir.path().join("latin.toml"), b"source = 'a/b' # \xe9").expect("a file");
        std::os::unix::fs::symlink("nowhere", dir.path().join("link.toml")).expect("a link");
        let fifo = dir.path().join("fifo.toml");
        let made = std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .expect("mkfifo");
        assert!(made.success());
        let (set, errors) = RecipeSet::load(dir.path());
        assert_eq!((set.iter().count(), errors.len()), (0, 5), "{errors:?}");
        assert!(
            errors
                .iter()
                .any(|e| e.to_string().ends_with("fifo.toml: is no regular file"))
        );
    }

    #[test]
    fn the_nearest_names_come_best_first() {
        let dir = folder(&[(
            "m.toml",
            "[models.gpt-oss-120b]\nsource = 'o/a'\n[models.gpt-oss-20b]\nsource = 'o/b'\n\
             [models.llama]\nsource = 'o/c'\naliases = ['meta']",
        )]);
        let (set, _) = RecipeSet::load(dir.path());
        assert_eq!(set.nearest("gpt-oss-120"), ["gpt-oss-120b", "gpt-oss-20b"]);
        assert_eq!(
            set.nearest("GPT-OSS-20B").first().map(String::as_str),
            Some("gpt-oss-20b")
        );
        assert!(set.nearest("zzz").is_empty());
    }

    #[test]
    fn the_recipes_we_ship_hold() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../slurm-conf/models.d");
        let (set, errors) = RecipeSet::load(&shipped);
        assert_eq!(errors, []);
        let names: Vec<_> = set.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["gpt-oss-120b", "qwen3-coder-30b", "qwen3.6-27b"]);
        for recipe in set.iter() {
            assert_eq!(recipe.gpus, 1, "{}", recipe.name);
            assert!(
                recipe.gpu_memory_gib.is_some_and(|gib| gib <= 94.0),
                "{}",
                recipe.name
            );
            assert!(!recipe.description.is_empty(), "{}", recipe.name);
            assert_eq!(Recipe::parse_one(&recipe.to_toml()).as_ref(), Ok(recipe));
        }
    }
}
