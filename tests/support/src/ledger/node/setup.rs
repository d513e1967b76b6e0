//! What a process of the fleet is told on its command line.

use std::{path::PathBuf, time::Duration};

use crate::site::Framework;

/// How a process is set up.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Of its routes and its worker.
    pub framework: Framework,
    /// Its store.
    pub url: String,
    /// Where its handlers write.
    pub log: PathBuf,
    /// Whether it has a worker.
    pub works: bool,
    /// Of locks and of runs.
    pub lease: Duration,
    /// How long it drains.
    pub drain: Duration,
    /// Runs at once.
    pub concurrency: usize,
    /// Whether all workers together run one at once, and begin ten a second.
    pub limited: bool,
    /// Most runs of a PUT.
    pub most: u32,
    /// Numbers of the keys that requests are sealed with: the first one seals, all open. None: not sealed.
    pub keys: Vec<u8>,
    /// The server with the registers that runs write to; empty: they write to none.
    pub registers: String,
    /// Of a call to the store.
    pub deadline: Duration,
}

impl Setup {
    /// A node with a worker, with leases of two seconds.
    #[must_use]
    pub fn new(framework: Framework) -> Self {
        Self {
            framework,
            url: String::new(),
            log: PathBuf::new(),
            works: true,
            lease: Duration::from_secs(2),
            drain: Duration::from_secs(5),
            concurrency: 8,
            limited: false,
            most: 5,
            keys: Vec::new(),
            registers: String::new(),
            // Above what a call takes: a loaded machine is no outage.
            deadline: Duration::from_secs(5),
        }
    }

    /// Without a worker.
    #[must_use]
    pub fn web_only(self) -> Self {
        Self { works: false, ..self }
    }

    /// Its words on a command line.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let framework = match self.framework {
            Framework::Axum => "axum",
            Framework::Actix => "actix",
        };
        vec![
            framework.to_owned(),
            self.url.clone(),
            self.log.display().to_string(),
            self.works.to_string(),
            self.lease.as_millis().to_string(),
            self.drain.as_millis().to_string(),
            self.concurrency.to_string(),
            self.limited.to_string(),
            self.most.to_string(),
            self.keys.iter().map(|key| format!("{key},")).collect(),
            self.registers.clone(),
            self.deadline.as_millis().to_string(),
        ]
    }

    /// From the words of a command line.
    #[must_use]
    pub fn parse(words: &[String]) -> Option<Self> {
        let [framework, url, log, works, lease, drain, rest @ ..] = words else { return None };
        let [concurrency, limited, most, keys, registers, deadline] = rest else { return None };
        let framework = match &**framework {
            "axum" => Framework::Axum,
            "actix" => Framework::Actix,
            _ => return None,
        };
        Some(Self {
            framework,
            url: url.clone(),
            log: log.into(),
            works: works.parse().ok()?,
            lease: Duration::from_millis(lease.parse().ok()?),
            drain: Duration::from_millis(drain.parse().ok()?),
            concurrency: concurrency.parse().ok()?,
            limited: limited.parse().ok()?,
            most: most.parse().ok()?,
            keys: keys.split_terminator(',').map(|key| key.parse().ok()).collect::<Option<_>>()?,
            registers: registers.clone(),
            deadline: Duration::from_millis(deadline.parse().ok()?),
        })
    }
}
