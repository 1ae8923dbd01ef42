//! `sserve recipes list`

use serde::Serialize;
use slurm_serve_recipe::Recipe;

use super::Recipes;
use crate::failure::Failure;
use crate::out;
use crate::table::{self, Column};

/// The names, whose they are, and what they need
///
/// Recipes that do not hold are told on stderr, with file and line.
#[derive(Debug, clap::Args)]
pub struct Args {}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    recipes: Vec<Row<'a>>,
    broken: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    /// `admin` or `own`.
    from: &'static str,
    file: String,
    /// An admin's recipe of the same name is meant instead.
    hidden: bool,
    recipe: &'a Recipe,
}

const HEAD: [Column; 6] = [
    Column::text("NAME", 12),
    Column::whole("FROM"),
    Column::whole("TASK"),
    Column::number("GPUS"),
    Column::text("SOURCE", 12),
    Column::text("DESCRIPTION", 12),
];

/// Runs the verb.
pub fn run(_: Args, recipes: &Recipes, json: bool) -> Result<(), Failure> {
    let rows = rows(recipes);
    if json {
        let broken = recipes.broken.iter().map(ToString::to_string).collect();
        return out::json(&Listed {
            recipes: rows,
            broken,
        });
    }
    recipes.tell_broken();
    if rows.is_empty() {
        return out::line(format!(
            "there are no recipes: none in {}, none of your own in ~/.config/slurm-serve/models.d",
            recipes.admin_dir.display()
        ));
    }
    let cells: Vec<_> = rows.iter().map(cells).collect();
    out::lines(table::render(&HEAD, &cells, table::terminal_columns()))
}

fn rows(recipes: &Recipes) -> Vec<Row<'_>> {
    let sets = [(&recipes.admin, "admin"), (&recipes.own, "own")];
    let rows = sets.into_iter().flat_map(|(set, from)| {
        set.iter().map(move |recipe| Row {
            from,
            file: set
                .origin(&recipe.name)
                .map(|file| file.display().to_string())
                .unwrap_or_default(),
            hidden: from == "own" && recipes.admin.get(&recipe.name).is_some(),
            recipe,
        })
    });
    rows.collect()
}

fn cells(row: &Row<'_>) -> Vec<String> {
    let recipe = row.recipe;
    let note = match row.hidden {
        true => "hidden: the admin has one of that name".to_owned(),
        false => recipe.description.clone(),
    };
    vec![
        recipe.name.clone(),
        row.from.to_owned(),
        recipe.task.as_str().to_owned(),
        recipe.gpus.to_string(),
        recipe.source.clone(),
        note,
    ]
}
