//! What was asked for.

use std::time::Duration;

/// Fewer rounds than this are nothing to judge by.
const TO_JUDGE: usize = 9;

/// Of a sweep: it looks at many settings, and differences that matter are large.
const TO_CHOOSE: usize = 3;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args<P> {
    pub(crate) task: Task<P>,
    pub(crate) pace: Pace,
    /// Whether it is only to be seen that it runs.
    pub(crate) quick: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task<P> {
    Figures {
        only: Vec<P>,
        check: bool,
    },
    /// What is to be chosen for these.
    Sweep {
        only: Vec<P>,
    },
}

/// What can be run of a benchmark by itself: its numbered figures, and what is reported beside them.
pub(crate) trait Part: Copy + PartialEq + 'static {
    /// In the order in which they run, by the names they are asked for.
    const ALL: &'static [(&'static str, Self)];
    const USAGE: &'static str;

    fn all() -> Vec<Self> {
        Self::ALL.iter().map(|(_, part)| *part).collect()
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(one, _)| *one == name).map(|(_, part)| *part)
    }
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

impl<P: Part> Args<P> {
    pub(crate) fn read(words: &[&str]) -> Result<Self, String> {
        let usage = P::USAGE;
        let (mut only, mut check, mut quick, mut sweep) = (P::all(), false, false, false);
        let mut rounds = None;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{usage}"));
            match *word {
                "--check" => check = true,
                "--quick" => quick = true,
                "--sweep" => sweep = true,
                "--rounds" => rounds = Some(number(value()?)?),
                "--only" => only = parts(value()?)?,
                _ => return Err(format!("`{word}` is not understood\n{usage}")),
            }
        }
        let mut pace = if quick { Pace::QUICK } else { Pace::FULL };
        pace.rounds = if sweep { TO_CHOOSE } else { pace.rounds };
        pace.rounds = rounds.unwrap_or(pace.rounds);
        if check && (quick || pace.rounds < TO_JUDGE) {
            return Err(format!("--check needs full windows and at least {TO_JUDGE} rounds"));
        }
        let task = if sweep { Task::Sweep { only } } else { Task::Figures { only, check } };
        Ok(Self { task, pace, quick })
    }
}

fn number(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("--rounds needs a number, not `{word}`")),
    }
}

fn parts<P: Part>(list: &str) -> Result<Vec<P>, String> {
    let named = |name| P::named(name).ok_or_else(|| format!("there is no figure `{name}`"));
    list.split(',').map(str::trim).map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum One {
        First,
        Fourth,
        Memory,
    }

    impl Part for One {
        const ALL: &'static [(&'static str, Self)] =
            &[("1", Self::First), ("4", Self::Fourth), ("memory", Self::Memory)];
        const USAGE: &'static str = "usage";
    }

    #[test]
    fn everything_by_default() {
        let args = Args::<One>::read(&[]).unwrap();
        assert_eq!(args.task, Task::Figures { only: One::all(), check: false });
        assert_eq!(args.pace, Pace::FULL);
    }

    #[test]
    fn some_figures_and_more_rounds() {
        let args = Args::read(&["--only", "1,memory", "--rounds", "11", "--check"]).unwrap();
        let only = vec![One::First, One::Memory];
        assert_eq!(args.task, Task::Figures { only, check: true });
        assert_eq!(args.pace.rounds, 11);
    }

    #[test]
    fn what_is_asked_wrongly_is_refused() {
        for wrong in [
            &["--only"][..],
            &["--only", "6"],
            &["--rounds", "0"],
            &["--rounds", "many"],
            &["--chek"],
            &["--check", "--quick"],
            &["--check", "--rounds", "8"],
        ] {
            assert!(Args::<One>::read(wrong).is_err(), "{wrong:?}");
        }
    }
}
