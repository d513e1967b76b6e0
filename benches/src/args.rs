//! The options of a run.

use std::time::Duration;

use clap::ValueEnum;

/// Fewer rounds than this are nothing to judge by.
const TO_JUDGE: usize = 9;

/// `P`: the parts of a benchmark that can be run by themselves.
#[derive(Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Args<P: ValueEnum + Send + Sync + 'static> {
    /// Exit with 1 if a numbered figure falls short, and name it; needs at least 9 rounds
    #[arg(long)]
    pub(crate) check: bool,
    /// Alternating rounds of each comparison [default: 9]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Run these figures alone
    #[arg(long, value_enum, value_delimiter = ',', hide_possible_values = false)]
    only: Vec<P>,
    /// Run 3 rounds of small loads and short windows, to see that it runs: nothing to be judged by
    #[arg(long)]
    pub(crate) quick: bool,
}

/// How often and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    /// Before each window: connections, scripts and caches are warm when counting begins.
    pub(crate) warm: Duration,
    pub(crate) window: Duration,
}

impl Pace {
    const FULL: Self =
        Self { rounds: 9, warm: Duration::from_millis(250), window: Duration::from_secs(1) };
    const QUICK: Self =
        Self { rounds: 3, warm: Duration::from_millis(100), window: Duration::from_millis(300) };
}

impl<P: ValueEnum + PartialEq + Send + Sync + 'static> Args<P> {
    /// The parts to run, in their order.
    pub(crate) fn parts(&self) -> Vec<P> {
        let all = P::value_variants().iter();
        all.filter(|part| self.only.is_empty() || self.only.contains(part)).cloned().collect()
    }

    /// # Errors
    ///
    /// If nothing could be judged by what `--check` would see.
    pub(crate) fn pace(&self) -> Result<Pace, String> {
        let mut pace = if self.quick { Pace::QUICK } else { Pace::FULL };
        pace.rounds = self.rounds.unwrap_or(pace.rounds);
        if pace.rounds == 0 {
            return Err("--rounds needs at least one".into());
        }
        if self.check && (self.quick || pace.rounds < TO_JUDGE) {
            return Err(format!("--check needs full windows and at least {TO_JUDGE} rounds"));
        }
        Ok(pace)
    }

    /// These parts alone.
    pub(crate) fn only(parts: Vec<P>) -> Self {
        Self { check: false, rounds: None, only: parts, quick: false }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    enum One {
        #[value(name = "1")]
        First,
        #[value(name = "4")]
        Fourth,
        Memory,
    }

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args<One>,
    }

    fn read(words: &[&str]) -> Result<Args<One>, clap::Error> {
        Line::try_parse_from([&["bench"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn everything_by_default() {
        let args = read(&[]).unwrap();
        assert_eq!(args.parts(), [One::First, One::Fourth, One::Memory]);
        assert_eq!(args.pace(), Ok(Pace::FULL));
    }

    #[test]
    fn some_figures_and_more_rounds() {
        let args = read(&["--only", "memory,1", "--rounds", "11", "--check"]).unwrap();
        assert_eq!(args.parts(), [One::First, One::Memory]);
        assert_eq!(args.pace().map(|pace| pace.rounds), Ok(11));
    }

    #[test]
    fn what_is_asked_wrongly_is_refused() {
        for wrong in [&["--only"][..], &["--only", "6"], &["--rounds", "many"], &["--chek"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        for wrong in
            [&["--rounds", "0"][..], &["--check", "--quick"], &["--check", "--rounds", "8"]]
        {
            assert!(read(wrong).unwrap().pace().is_err(), "{wrong:?}");
        }
    }
}
