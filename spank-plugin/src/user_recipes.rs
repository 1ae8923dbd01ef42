//! The user's own recipes, `~/.config/slurm-serve/models.d`: read here, as the user, and never by root.

use std::path::{Path, PathBuf};

use slurm_serve_recipe::{Recipe, RecipeError, RecipeSet};

/// The admin's recipes and the user's, as far as this user can read them on this machine.
pub struct Readable {
    /// The admin's.
    pub admin: RecipeSet,
    /// The user's own. A name that is in `admin` too means the admin's.
    pub user: RecipeSet,
    /// Why the admin's folder could not be read at all.
    pub no_admin: Option<std::io::Error>,
    /// One for each broken file.
    pub broken: Vec<RecipeError>,
}

impl Readable {
    /// Reads both folders; `home` is the user's.
    pub fn load(admin_folder: &Path, home: Option<&str>) -> Self {
        let no_admin = std::fs::read_dir(admin_folder).err();
        let (admin, mut broken) = RecipeSet::load(admin_folder);
        let (user, broken_too) = match folder(home) {
            Some(folder) => RecipeSet::load(&folder),
            None => (RecipeSet::default(), Vec::new()),
        };
        broken.extend(broken_too);
        Self {
            admin,
            user,
            no_admin,
            broken,
        }
    }

    /// The user's own recipe of that name, unless the admin has one too.
    pub fn users_own(&self, name: &str) -> Option<&Recipe> {
        match self.admin.get(name) {
            Some(_) => None,
            None => self.user.get(name),
        }
    }
}

/// Where a user keeps recipes.
pub fn folder(home: Option<&str>) -> Option<PathBuf> {
    let home = home.filter(|home| home.starts_with('/'))?;
    Some(Path::new(home).join(".config/slurm-serve/models.d"))
}
