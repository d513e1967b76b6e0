//! What ties a process of a run to the one that conducts it: its standard input. When that closes, however
//! the conductor ended, the process ends too.

use std::{
    fmt::Display,
    io::{self, BufRead as _, Write as _},
    process,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use crate::outcome::Outcome;

pub(crate) struct Orders(Receiver<String>);

impl Orders {
    /// Listens, and ends this process when nobody is there any more, or after `at_most`, should the
    /// conductor or what is measured hang: `who` is named then.
    pub(crate) fn listen(who: impl Display, at_most: Duration) -> Self {
        let who = who.to_string();
        let (tell, told) = channel();
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
            process::exit(0);
        });
        thread::spawn(move || {
            thread::sleep(at_most);
            eprintln!(
                "{who}: a process of the benchmark took longer than {at_most:?}, and gave up"
            );
            process::exit(3);
        });
        Self(told)
    }

    /// Says that all is prepared, and waits for the moment at which counting begins.
    pub(crate) fn start(&self) -> Outcome<u64> {
        say("ready")?;
        Ok(self.0.recv()?.parse()?)
    }

    /// Waits for the next word.
    pub(crate) fn next(&self) -> Outcome<String> {
        Ok(self.0.recv()?)
    }
}

/// One line to the conductor.
pub(crate) fn say(line: &str) -> Outcome<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
