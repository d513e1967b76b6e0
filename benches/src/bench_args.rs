//! Command line arguments of a benchmark.

use std::time::Duration;

use clap::ValueEnum;

/// Minimum for `--check`: the median of fewer rounds is not reliable.
const MIN_CHECK_ROUNDS: usize = 9;

/// Arguments of one benchmark. `P` is the enum of its parts.
#[derive(Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct BenchArgs<P: ValueEnum + Send + Sync + 'static> {
    /// Exit with 1 if a numbered figure misses its target or a check fails; needs at least 9 rounds
    #[arg(long)]
    pub(crate) check: bool,
    /// Rounds of each comparison, in alternating order [default: 9]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',', hide_possible_values = false)]
    only: Vec<P>,
    /// Run 3 rounds with short windows and small loads, as a smoke test without valid results
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Number of rounds and length of their windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeasurementSettings {
    pub(crate) rounds: usize,
    /// Time before each window, so that connections, scripts and caches are warm when it begins.
    pub(crate) warmup: Duration,
    pub(crate) window: Duration,
}

impl MeasurementSettings {
    const FULL_RUN: Self =
        Self { rounds: 9, warmup: Duration::from_millis(250), window: Duration::from_secs(1) };
    const QUICK_RUN: Self =
        Self { rounds: 3, warmup: Duration::from_millis(100), window: Duration::from_millis(300) };
}

impl<P: ValueEnum + PartialEq + Send + Sync + 'static> BenchArgs<P> {
    /// Returns the parts to run, in the order of `P`.
    pub(crate) fn selected_parts(&self) -> Vec<P> {
        let parts = P::value_variants().iter();
        parts.filter(|part| self.only.is_empty() || self.only.contains(part)).cloned().collect()
    }

    /// Returns an error if there is no round, or if `--check` has too few rounds or short windows.
    pub(crate) fn measurement_settings(&self) -> Result<MeasurementSettings, String> {
        let mut settings =
            if self.quick { MeasurementSettings::QUICK_RUN } else { MeasurementSettings::FULL_RUN };
        settings.rounds = self.rounds.unwrap_or(settings.rounds);
        if settings.rounds == 0 {
            return Err("--rounds must be at least 1".into());
        }
        if self.check && (self.quick || settings.rounds < MIN_CHECK_ROUNDS) {
            return Err(format!(
                "--check needs at least {MIN_CHECK_ROUNDS} rounds, and excludes --quick"
            ));
        }
        Ok(settings)
    }

    /// Creates the arguments that run only `parts`.
    pub(crate) fn for_parts(parts: Vec<P>) -> Self {
        Self { check: false, rounds: None, only: parts, quick: false }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    enum TestPart {
        #[value(name = "1")]
        First,
        #[value(name = "4")]
        Fourth,
        Memory,
    }

    #[derive(Debug, Parser)]
    struct TestCommandLine {
        #[command(flatten)]
        args: BenchArgs<TestPart>,
    }

    fn parse_args(args: &[&str]) -> Result<BenchArgs<TestPart>, clap::Error> {
        TestCommandLine::try_parse_from([&["bench"], args].concat())
            .map(|command_line| command_line.args)
    }

    #[test]
    fn default_args_select_all_parts_and_full_run() {
        let args = parse_args(&[]).unwrap();
        assert_eq!(args.selected_parts(), [TestPart::First, TestPart::Fourth, TestPart::Memory]);
        assert_eq!(args.measurement_settings(), Ok(MeasurementSettings::FULL_RUN));
    }

    #[test]
    fn only_and_rounds_are_parsed() {
        let args = parse_args(&["--only", "memory,1", "--rounds", "11", "--check"]).unwrap();
        assert_eq!(args.selected_parts(), [TestPart::First, TestPart::Memory]);
        assert_eq!(args.measurement_settings().map(|settings| settings.rounds), Ok(11));
    }

    #[test]
    fn invalid_args_are_rejected() {
        for args in [&["--only"][..], &["--only", "6"], &["--rounds", "many"], &["--chek"]] {
            assert!(parse_args(args).is_err(), "{args:?}");
        }
        for args in [&["--rounds", "0"][..], &["--check", "--quick"], &["--check", "--rounds", "8"]]
        {
            assert!(parse_args(args).unwrap().measurement_settings().is_err(), "{args:?}");
        }
    }
}
