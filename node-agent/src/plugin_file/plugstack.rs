//! plugstack.conf as Slurm reads it (`spank.c`): which plugins, in which order, with which arguments.

use std::fs;
use std::path::{Path, PathBuf};

/// One plugin of the stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackLine {
    /// The file that names it.
    pub file: PathBuf,
    /// Which line of that file, from 1.
    pub line: usize,
    /// `required`: if it does not load, sbatch, srun, slurmd and every job step fail. Else `optional`.
    pub required: bool,
    /// As written; a relative path is looked for in PluginDir.
    pub plugin: String,
    /// What follows.
    pub arguments: Vec<String>,
}

/// Why the stack can't be read: one line. Slurm then fails every command, whatever `optional` says.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlugstackError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}:{line}: {what}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        what: String,
    },
}

/// Includes deeper than this are a loop.
const DEEPEST: usize = 16;

/// The plugins that `file` and its includes name, in order. A missing `file` is an empty stack, as for Slurm.
pub fn read(file: &Path) -> Result<Vec<StackLine>, PlugstackError> {
    let mut lines = Vec::new();
    read_into(file, 0, &mut lines)?;
    Ok(lines)
}

fn read_into(file: &Path, depth: usize, lines: &mut Vec<StackLine>) -> Result<(), PlugstackError> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(PlugstackError::Io {
                path: file.to_owned(),
                error,
            });
        }
    };
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what: String| PlugstackError::Line {
            path: file.to_owned(),
            line: number,
            what,
        };
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(kind) = words.next() else { continue };
        let subject = words
            .next()
            .ok_or_else(|| wrong(format!("{kind:?} is followed by nothing")))?;
        match kind {
            "include" if depth >= DEEPEST => return Err(wrong("includes go round in a circle".into())),
            "include" => {
                // A relative pattern is relative to the file it stands in.
                let pattern = file.parent().unwrap_or(Path::new("/")).join(subject);
                let paths =
                    glob::glob(&pattern.to_string_lossy()).map_err(|error| wrong(error.to_string()))?;
                for path in paths {
                    let path = path.map_err(|error| wrong(error.to_string()))?;
                    read_into(&path, depth + 1, lines)?;
                }
            }
            "required" | "optional" => lines.push(StackLine {
                file: file.to_owned(),
                line: number,
                required: kind == "required",
                plugin: subject.to_owned(),
                arguments: words.map(str::to_owned).collect(),
            }),
            other => {
                return Err(wrong(format!(
                    "{other:?} is none of required, optional and include"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_followed_in_order_and_comments_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("plugstack.conf");
        let parts = folder.path().join("plugstack.conf.d");
        fs::create_dir(&parts).unwrap();
        fs::write(
            &stack,
            "# site\n\nrequired /a.so # always\ninclude plugstack.conf.d/*.conf\n",
        )
        .unwrap();
        fs::write(parts.join("b.conf"), "optional b.so x=1 y\n").unwrap();
        fs::write(parts.join("a.conf"), "optional spank_serve.so\n").unwrap();
        fs::write(parts.join("off.disabled"), "required no.so\n").unwrap();
        let lines = read(&stack).unwrap();
        let plugins: Vec<_> = lines
            .iter()
            .map(|line| (line.plugin.as_str(), line.required, line.line))
            .collect();
        assert_eq!(
            plugins,
            [
                ("/a.so", true, 3),
                ("spank_serve.so", false, 1),
                ("b.so", false, 1)
            ]
        );
        assert_eq!(lines[2].arguments, ["x=1", "y"]);
        assert_eq!(lines[1].file, parts.join("a.conf"));
    }

    #[test]
    fn a_missing_file_is_an_empty_stack_and_nonsense_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("plugstack.conf");
        assert_eq!(read(&stack).unwrap(), []);
        fs::write(&stack, "\nload x.so\n").unwrap();
        let told = read(&stack).unwrap_err().to_string();
        assert!(
            told.contains("plugstack.conf:2") && told.contains("load"),
            "{told}"
        );
        fs::write(&stack, "include plugstack.conf\n").unwrap();
        assert!(read(&stack).unwrap_err().to_string().contains("circle"));
    }
}
