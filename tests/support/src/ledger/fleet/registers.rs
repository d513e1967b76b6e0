//! Registers that runs write to under the locks of their resources.

use lockgate_history::locks::Register;

use super::{Fleet, Ground};
use crate::{history::register::Registers, redis::Server};

impl<G: Ground> Fleet<G> {
    /// From now on there are registers of so many resources, which are judged at the end; their URL. They are on a server
    /// of their own: no fault of the locks' is one of theirs.
    pub(in crate::ledger) async fn keeps_registers(&mut self, resources: u64) -> String {
        let server = Server::start().await;
        let url = plain(&server);
        self.registers = Some((server, resources));
        url
    }

    /// What they have taken.
    pub(super) async fn taken(&self) -> Vec<Register> {
        let Some((server, resources)) = &self.registers else { return Vec::new() };
        let registers = Registers::open(&plain(server)).await;
        let registers = registers.expect("the registers are there");
        let mut all = Vec::new();
        for resource in 0..*resources {
            let outcome = registers.outcome(&resource.to_string()).await;
            all.push(outcome.expect("the registers are there").fenced);
        }
        all
    }
}

/// Without a namespace, as a client of Redis takes it.
fn plain(server: &Server) -> String {
    server.url("").split('?').next().unwrap_or_default().to_owned()
}
