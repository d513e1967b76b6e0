//! What is done to the processes, and what the books have to know of it.

use std::{sync::Arc, time::Duration};

use lockgate_history::{Life, deferred::Trouble};

use super::{Fleet, Ground};
use crate::{
    history::{
        clock::{self, ns},
        process::kill_now,
    },
    ledger::stall::AFTERMATH,
    wait::within,
};

/// How long half-open connections stay: nodes give a call five seconds, so most are left by then.
const HALF_OPEN: Duration = Duration::from_secs(12);

impl<G: Ground> Fleet<G> {
    /// SIGKILL from wherever it is called, without waiting: for a [`Rule`](crate::proxy::Rule).
    pub fn killer(&self, node: usize) -> impl Fn() + Send + Sync + 'static {
        let seat = &self.seats[node];
        let (life, pid) = (seat.life, seat.process.pid());
        let history = Arc::clone(&self.history);
        move || {
            if let Some(pid) = pid {
                // Before it dies: what it was sure of then may not be so any more a moment later.
                history.lock().killed.entry(life).or_insert_with(clock::now);
                kill_now(pid);
            }
        }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, node: usize) {
        self.killer(node)();
        self.seats[node].process.kill().await;
    }

    /// Another process in place of one that has ended, or is ended now.
    pub async fn replace(&mut self, node: usize) {
        self.kill(node).await;
        let (life, setup) = (self.seats[node].life, self.seats[node].setup.clone());
        let next = Life { number: life.number + 1, ..life };
        self.seats[node] = self.start(next, setup).await;
    }

    /// SIGSTOP.
    pub fn pause(&self, node: usize) {
        self.seats[node].process.pause();
    }

    /// SIGCONT, after so long a pause.
    pub fn resume(&self, node: usize, paused: Duration) {
        let now = clock::now();
        self.trouble(Some(node), now.saturating_sub(ns(paused)), now + ns(Duration::from_secs(3)));
        self.seats[node].process.resume();
    }

    /// SIGTERM.
    pub fn terminate(&self, node: usize) {
        let mut history = self.history.lock();
        history.drained.insert(self.seats[node].life);
        history.stopping.insert(self.seats[node].life, clock::now());
        drop(history);
        self.seats[node].process.terminate();
    }

    /// Waits until a worker that was told to stop has begun to: from then on it claims nothing.
    pub async fn stops(&self, node: usize) {
        let trace = self.log(self.seats[node].life).with_extension("trace");
        let stops = async {
            while !std::fs::read_to_string(&trace).is_ok_and(|told| told.contains("worker stops")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("a worker to stop", stops).await;
    }

    /// Waits until a process has ended by itself; its exit code.
    pub async fn ended(&mut self, node: usize) -> Option<i32> {
        within("a node to end", self.seats[node].process.ended()).await
    }

    /// In this time something was done to this process, or to all.
    pub fn trouble(&self, node: Option<usize>, from: u64, to: u64) {
        let life = node.map(|node| self.seats[node].life);
        self.history.lock().troubles.push(Trouble { life, from, to });
    }

    /// From now on, for so long, something is done to this process, or to all.
    pub fn trouble_for(&self, node: Option<usize>, time: Duration) {
        let now = clock::now();
        self.trouble(node, now, now + ns(time));
    }

    /// As [`trouble_for`](Self::trouble_for), from when it is called: for a [`Rule`](crate::proxy::Rule).
    pub fn troubler(&self, node: usize, time: Duration) -> impl Fn() + Send + Sync + 'static {
        let (life, history) = (Some(self.seats[node].life), Arc::clone(&self.history));
        move || {
            let from = clock::now();
            history.lock().troubles.push(Trouble { life, from, to: from + ns(time) });
        }
    }
}

impl Fleet {
    /// Its connections are half open from now on. That is trouble for as long as it uses them: each is left after three calls
    /// that were not answered, so one that is seldom used is left late. What is there after a while ends.
    pub fn half_open(&self, node: usize) {
        let (life, proxy) = (self.seats[node].life, self.proxy(node));
        let trouble = {
            let (life, from) = (Some(life), clock::now());
            let troubles = &mut self.history.lock().troubles;
            troubles.push(Trouble { life, from, to: from + ns(HALF_OPEN + AFTERMATH) });
            troubles.len() - 1
        };
        proxy.half_open();
        let (proxy, history) = (proxy.clone(), Arc::clone(&self.history));
        tokio::spawn(async move {
            let _ = tokio::time::timeout(HALF_OPEN, proxy.left()).await;
            proxy.end_half_open();
            // Nothing, if all was judged meanwhile.
            if let Some(trouble) = history.lock().troubles.get_mut(trouble) {
                trouble.to = clock::now() + ns(AFTERMATH);
            }
        });
    }
}
