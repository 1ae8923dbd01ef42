//! Quantiles with a 95 % interval, by resampling rounds.
//!
//! What is compared is measured in rounds, every arm once in each, so that a busy moment of the machine meets all of them. A round, not a
//! value, is what is drawn again: the values of one stream belong together.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Values of one thing, by round; in the order of the rounds, so that two of them can be paired.
#[derive(Debug, Clone, Default)]
pub struct Samples(pub Vec<Vec<f64>>);

/// A figure and the interval that holds the true one in 95 of 100 runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The figure itself.
    pub value: f64,
    /// The interval; `None` where too few rounds were measured to say.
    pub interval: Option<(f64, f64)>,
}

/// So often the rounds are drawn again.
const DRAWS: usize = 1000;

/// With fewer rounds an interval would only pretend.
const FEWEST: usize = 5;

impl Samples {
    /// One value a round.
    pub fn single(values: impl IntoIterator<Item = f64>) -> Self {
        Self(values.into_iter().map(|value| vec![value]).collect())
    }

    /// Adds a round.
    pub fn push(&mut self, round: Vec<f64>) {
        self.0.push(round);
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// The quantile `q` (0.5 is the median).
    pub fn quantile(&self, q: f64) -> Estimate {
        estimate(self.0.len(), |rounds| pooled(&self.0, rounds, q))
    }

    /// This one's quantile less the other's, over the rounds that both have.
    pub fn added(&self, base: &Self, q: f64) -> Estimate {
        let rounds = self.0.len().min(base.0.len());
        estimate(rounds, |rounds| {
            pooled(&self.0, rounds, q) - pooled(&base.0, rounds, q)
        })
    }
}

fn estimate(rounds: usize, figure: impl Fn(&[usize]) -> f64) -> Estimate {
    let all: Vec<usize> = (0..rounds).collect();
    let value = figure(&all);
    if rounds < FEWEST {
        return Estimate {
            value,
            interval: None,
        };
    }
    // The same draws every time: the same samples give the same interval.
    let mut random = SmallRng::seed_from_u64(1);
    let mut drawn = vec![0; rounds];
    let mut figures: Vec<f64> = (0..DRAWS)
        .map(|_| {
            drawn.fill_with(|| random.random_range(0..rounds));
            figure(&drawn)
        })
        .collect();
    let interval = (of(&mut figures, 0.025), of(&mut figures, 0.975));
    Estimate {
        value,
        interval: Some(interval),
    }
}

fn pooled(samples: &[Vec<f64>], rounds: &[usize], q: f64) -> f64 {
    let mut values: Vec<f64> = rounds
        .iter()
        .flat_map(|round| samples[*round].iter().copied())
        .collect();
    of(&mut values, q)
}

/// The quantile `q`: between the two neighbours, as most programs have it (type 7). Of nothing it is not a number.
fn of(values: &mut [f64], q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let place = q * (values.len() - 1) as f64;
    let (_, low, above) = values.select_nth_unstable_by(place.floor() as usize, f64::total_cmp);
    let low = *low;
    let next = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    low + (next - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(of(&mut values, 0.5), 2.5);
        assert_eq!(of(&mut values, 1.0), 4.0);
        assert!(of(&mut [], 0.5).is_nan());
    }

    #[test]
    fn the_interval_holds_the_value_and_narrows_with_rounds() {
        let few = Samples::single((0..20).map(f64::from)).quantile(0.5);
        let many = Samples::single((0..2000).map(|n| f64::from(n) / 100.0)).quantile(0.5);
        let width = |e: Estimate| e.interval.map(|(low, high)| high - low);
        let (low, high) = few.interval.expect("enough rounds");
        assert!(low < few.value && few.value < high);
        assert!(width(many) < width(few));
    }

    #[test]
    fn what_hits_both_arms_alike_is_not_added() {
        let noise = [0.0, 50.0, 3.0, 80.0, 1.0, 20.0];
        let base = Samples::single(noise);
        let more = Samples::single(noise.map(|value| value + 2.0));
        let added = more.added(&base, 0.5);
        assert!((added.value - 2.0).abs() < 1e-9);
        assert_eq!(
            added.interval.map(|(low, high)| (low.round(), high.round())),
            Some((2.0, 2.0))
        );
    }

    #[test]
    fn too_few_rounds_have_no_interval() {
        assert_eq!(Samples::single([1.0, 2.0]).quantile(0.5).interval, None);
    }
}
