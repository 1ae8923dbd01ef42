//! `[catalog]`: what a recipe says for catalogs that bill and that know teams.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::error::RecipeError;
use crate::file::one_line;
use crate::place::Place;

/// All optional. Read by LiteLLM alone so far; only a model under the site's own name carries it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CatalogFields {
    /// Whose model it is there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub team: String,
    /// Who may use it there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_groups: Vec<String>,
    /// In the catalog's currency, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_cost_per_token: Option<f64>,
    /// Likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_cost_per_token: Option<f64>,
    /// Longest input, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u32>,
    /// Longest answer, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCatalog {
    team: Option<Spanned<String>>,
    access_groups: Option<Vec<Spanned<String>>>,
    input_cost_per_token: Option<Spanned<crate::file::Number>>,
    output_cost_per_token: Option<Spanned<crate::file::Number>>,
    max_input_tokens: Option<Spanned<i64>>,
    max_output_tokens: Option<Spanned<i64>>,
}

impl RawCatalog {
    pub(crate) fn check(self, place: &Place<'_>) -> Result<CatalogFields, RecipeError> {
        let cost = |key: &str, raw: Option<Spanned<crate::file::Number>>| match raw {
            None => Ok(None),
            Some(raw) => match raw.get_ref().0 {
                cost if cost.is_finite() && cost >= 0.0 => Ok(Some(cost)),
                cost => Err(place.fault(
                    raw.span().start,
                    format!("catalog.{key} = {cost} is no cost; write a number from 0"),
                )),
            },
        };
        let tokens = |key: &str, raw: Option<Spanned<i64>>| match raw {
            None => Ok(None),
            Some(raw) => match u32::try_from(*raw.get_ref()) {
                Ok(tokens) if tokens > 0 => Ok(Some(tokens)),
                _ => Err(place.fault(
                    raw.span().start,
                    format!("catalog.{key} = {} is no number of tokens", raw.get_ref()),
                )),
            },
        };
        Ok(CatalogFields {
            team: match self.team {
                Some(team) => place.check(team, |team| one_line("catalog.team", team, 256))?,
                None => String::new(),
            },
            access_groups: place.list("catalog.access_groups", self.access_groups, |group| {
                one_line("catalog.access_groups", group, 256)
            })?,
            input_cost_per_token: cost("input_cost_per_token", self.input_cost_per_token)?,
            output_cost_per_token: cost("output_cost_per_token", self.output_cost_per_token)?,
            max_input_tokens: tokens("max_input_tokens", self.max_input_tokens)?,
            max_output_tokens: tokens("max_output_tokens", self.max_output_tokens)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Recipe;

    #[test]
    fn what_is_for_catalogs_is_read_and_written_again() {
        let text = "source = 'o/m'\n[catalog]\nteam = 't'\naccess_groups = ['a', 'b']\ninput_cost_per_token = 1e-6\nmax_input_tokens = 131072\n";
        let recipe = Recipe::parse(text, Path::new("m.toml")).unwrap().remove(0);
        assert_eq!(
            (recipe.catalog.team.as_str(), recipe.catalog.access_groups.len()),
            ("t", 2)
        );
        assert_eq!(
            (
                recipe.catalog.input_cost_per_token,
                recipe.catalog.max_input_tokens
            ),
            (Some(1e-6), Some(131_072))
        );
        assert_eq!(Recipe::parse_one(&recipe.to_toml()).unwrap(), recipe);
    }

    #[test]
    fn what_can_not_be_is_said_with_its_line() {
        for (line, words) in [
            ("input_cost_per_token = -1", "from 0"),
            ("output_cost_per_token = nan", "from 0"),
            ("max_input_tokens = 0", "tokens"),
            ("team = ''", "empty"),
            ("colour = 'red'", "colour"),
        ] {
            let text = format!("source = 'o/m'\n[catalog]\n{line}\n");
            let error = Recipe::parse(&text, Path::new("m.toml")).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("m.toml:3"), "{error}");
        }
    }
}
