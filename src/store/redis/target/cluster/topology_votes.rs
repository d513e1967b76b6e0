//! `TopologyVotes`: views of the queried cluster nodes, of which the most frequent one wins.

use std::time::Duration;

use super::topology_view::TopologyView;
use crate::store::redis::target::ConnectError;

/// Views and failures of the queried nodes.
#[derive(Default)]
pub(super) struct TopologyVotes {
    /// Each distinct view, with its number of votes.
    views: Vec<(TopologyView, usize)>,
    pub(super) failure: Option<ConnectError>,
    /// The shortest reported `cluster-node-timeout`.
    pub(super) node_timeout: Option<Duration>,
}

impl TopologyVotes {
    /// Adds a view, and returns its number of votes.
    pub(super) fn add_vote(&mut self, view: TopologyView) -> usize {
        self.node_timeout = self.node_timeout.into_iter().chain(view.node_timeout).min();
        match self.views.iter_mut().find(|(other, _)| other.owners == view.owners) {
            Some((_, votes)) => {
                *votes += 1;
                *votes
            }
            None => {
                self.views.push((view, 1));
                1
            }
        }
    }

    /// Keeps the most severe failure: a configuration error concerns all nodes.
    pub(super) fn record_failure(&mut self, failure: ConnectError) {
        let is_more_severe = match (&self.failure, &failure) {
            (None | Some(ConnectError::Unavailable), _) => true,
            (Some(ConnectError::Unreachable(_)), new) => {
                matches!(new, ConnectError::Refused(_) | ConnectError::Config(_))
            }
            (Some(ConnectError::Refused(_)), new) => matches!(new, ConnectError::Config(_)),
            (Some(ConnectError::Config(_)), _) => false,
        };
        if is_more_severe {
            self.failure = Some(failure);
        }
    }

    /// Takes the view with the most votes; among equals, the one with the most known owners.
    pub(super) fn take_winner(&mut self) -> Option<TopologyView> {
        let owner_count = |view: &TopologyView| view.owners.iter().flatten().count();
        let views = self.views.drain(..);
        views.max_by_key(|(view, votes)| (*votes, owner_count(view))).map(|(view, _)| view)
    }
}
