//! What `cargo xtask mutants` prints.

use super::Tried;
use super::plant::{Mutant, Seen};
use super::run::Outcome;
use std::collections::BTreeMap;

/// The outcome of one mutant.
pub(super) fn line(tried: &Tried<'_>) -> String {
    format!("{:32} {} ({:.1} s)", tried.mutant.name, how(tried), tried.took.as_secs_f64())
}

fn how(Tried { outcome, seed, .. }: &Tried<'_>) -> String {
    match (outcome, seed) {
        (Outcome::Passed, _) => "survives".to_owned(),
        (Outcome::Failed(how), None) => format!("caught: {how}"),
        (Outcome::Failed(how), Some(seed)) => {
            format!("caught: {how}, in an order from seed {seed}")
        }
    }
}

/// How many mutants were caught, and how.
pub(super) fn counts(results: &[Tried<'_>]) -> String {
    let mut by_how = BTreeMap::<String, usize>::new();
    for Tried { outcome, .. } in results {
        if let Outcome::Failed(how) = outcome {
            *by_how.entry(how.to_string()).or_default() += 1;
        }
    }
    let caught: usize = by_how.values().sum();
    let by_how: Vec<_> = by_how.iter().map(|(how, count)| format!("{how} {count}")).collect();
    format!("{caught} of {} caught ({})", results.len(), by_how.join(", "))
}

/// Survivors that the table lists as caught, and caught mutants that it lists as survivors.
pub(super) fn wrong(results: &[Tried<'_>]) -> Vec<String> {
    let wrong = |Tried { mutant, outcome, .. }: &Tried<'_>| {
        let Mutant { name, test, seen, .. } = mutant;
        match (seen, outcome) {
            (Seen::OnEmulator, Outcome::Passed) => Some(format!("{name} survives {test}")),
            (Seen::OnGpu { .. } | Seen::Nowhere(_), Outcome::Failed(how)) => {
                Some(format!("{name} is caught by {test} after all: {how}"))
            }
            _ => None,
        }
    };
    results.iter().filter_map(wrong).collect()
}

/// A line of a Markdown table for each mutant.
pub(super) fn table(results: &[Tried<'_>]) -> String {
    let row = |tried: &Tried<'_>| {
        let Mutant { name, file, what, test, seen, .. } = tried.mutant;
        let (by, how) = match (*seen, &tried.outcome) {
            (Seen::OnGpu { test, why }, Outcome::Passed) => (test, format!("on a GPU: {why}")),
            (Seen::Nowhere(why), Outcome::Passed) => ("", format!("survives: {why}")),
            _ => (*test, how(tried)),
        };
        format!("| {name} | {file} | {what} | {by} | {how} |")
    };
    let head = ["| mutant | file | what | test | outcome |", "|---|---|---|---|---|"];
    let rows = results.iter().map(row);
    head.map(str::to_owned).into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::run::How;
    use super::super::table;
    use super::*;
    use std::time::Duration;

    fn tried<'a>(mutant: &'a Mutant, outcome: Outcome, seed: Option<u64>) -> Tried<'a> {
        Tried { mutant, outcome, seed, took: Duration::ZERO }
    }

    #[test]
    fn survivors_that_the_table_does_not_know_are_wrong() {
        let of = |seen| Mutant { seen, ..*table::all()[0] };
        let known = of(Seen::Nowhere("for a reason"));
        let unknown = of(Seen::OnEmulator);
        let race = Outcome::Failed(How::Reported("race"));
        let results = [
            tried(&known, Outcome::Passed, Some(2)),
            tried(&unknown, Outcome::Passed, Some(2)),
            tried(&unknown, race.clone(), None),
        ];
        assert_eq!(wrong(&results), [format!("{} survives {}", unknown.name, unknown.test)]);
        assert_eq!(wrong(&[tried(&known, race, None)]).len(), 1);
        assert_eq!(counts(&results), "1 of 3 caught (race 1)");
    }

    #[test]
    fn a_line_says_in_which_order_a_mutant_was_caught() {
        let mutant = table::all()[0];
        let hung = |seed| line(&tried(mutant, Outcome::Failed(How::Hung), seed));
        assert!(hung(None).contains(" caught: hang (0.0 s)"));
        assert!(hung(Some(1)).contains(" caught: hang, in an order from seed 1 (0.0 s)"));
    }
}
