//! The schedule of the faults, and the measurements of a soak.

use std::time::{Duration, Instant};

use super::{Domain, Fault, Fleet, Plan, clock, dice::Dice};
use crate::{
    checker::{Guarantee, Violation},
    flat::{self, Kind},
    gauge::Gauge,
    kept,
    proxy::Proxy,
};

/// Longest time that a run goes on which has not shown enough.
const MORE: Duration = Duration::from_secs(20);

impl<D: Domain> Fleet<D> {
    /// Makes faults until the time without them at the end. Returns when the last one was over, ns.
    pub(super) async fn storm(&mut self, plan: &Plan, started: Instant, dice: &mut Dice) -> u64 {
        let last = D::RULES.last;
        let mut until = started + plan.time.saturating_sub(last);
        loop {
            self.faults(until, dice).await;
            let calm = clock::now();
            tokio::time::sleep(last).await;
            if D::shows(self) || started.elapsed() > plan.time + MORE {
                return calm;
            }
            until = Instant::now() + last;
        }
    }

    async fn faults(&mut self, until: Instant, dice: &mut Dice) {
        let (rules, mut turned) = (D::RULES, Instant::now());
        while Instant::now() < until {
            // Dice of its own: with the same seed the next faults are the same, whatever comes of this one.
            let mut own = Dice::new(dice.roll());
            let soak = if self.soaks() { rules.soak } else { &[] };
            let drawn = Fault::draw(&mut own, &[rules.faults, soak]);
            // However short the run is, a process is killed.
            let fault = if self.done.is_empty() { Fault::Kill } else { drawn };
            *self.done.entry(fault).or_default() += 1;
            D::beside(self, &mut own);
            self.strike(fault, &mut own).await;
            tokio::time::sleep(own.ms(rules.pause.0, rules.pause.1)).await;
            let turn = rules.turns.filter(|(faulty, _)| turned.elapsed() > *faulty);
            if let Some((_, calm)) = turn {
                self.all_go_on().await;
                let left = until.saturating_duration_since(Instant::now());
                tokio::time::sleep(calm.min(left)).await;
                turned = Instant::now();
            }
            let due = self.soak.is_some_and(|every| self.rested.elapsed() > every);
            if due && (turn.is_some() || !rules.rests_in_calm) {
                self.all_go_on().await;
                self.rest().await;
                turned = Instant::now();
            }
        }
        self.all_go_on().await;
        self.proxies().for_each(Proxy::forget_rules);
    }

    /// The faults that were made, counted.
    pub(super) fn done(&self) -> String {
        let done = self.done.iter().map(|(fault, count)| format!("{count} {fault:?}"));
        done.collect::<Vec<_>>().join(", ")
    }

    /// All processes end what they have begun. Those that are never replaced are measured, and the server.
    async fn rest(&mut self) {
        let rules = D::RULES;
        self.orders.rest(true);
        self.tell("rest").await;
        self.samples.rest();
        let mut connection = self.server.connection().await;
        let keys = self.keys(&mut connection).await;
        self.samples.add(rules.store, Kind::Keys, keys);
        let kept = kept::for_ever(&mut connection, D::NAME).await;
        self.samples.add(rules.store, Kind::Kept, kept);
        for (who, name) in rules.old.iter().enumerate() {
            let gauge = Gauge::ask(self.process(who)).await;
            self.samples.gauge(name, gauge);
        }
        let mut gauge = Gauge::of(self.server.pid());
        if rules.beside_keys {
            // Results are kept for a day, which is no growth. Keys without an end are measured above.
            gauge.memory = Some(kept::beside_keys(&mut connection).await);
        }
        self.samples.gauge(rules.server, gauge);
        self.tell("go").await;
        self.orders.rest(false);
        self.rested = Instant::now();
    }

    /// All measurements of a soak, and those that have grown.
    pub(super) fn growth(&self) -> (Vec<String>, Vec<Violation>) {
        let rules = D::RULES;
        let mut expected: Vec<_> = rules.old.iter().map(|name| (*name, flat::PROCESS)).collect();
        expected.extend([(rules.server, flat::SERVER), (rules.store, flat::STORE)]);
        let expected = if self.soaks() { &expected[..] } else { &[] };
        let (flat, grown) = self.samples.compare(expected);
        let violation = |told| Violation { guarantee: Guarantee::N1, description: told };
        (flat, grown.into_iter().map(violation).collect())
    }
}
