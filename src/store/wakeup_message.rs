//! `WakeupMessage`: message by which a store or a process asks another process to poll.

use std::sync::Arc;

use super::{job_id::JobId, lock_commands_and_outcomes::Contenders, lock_token::LockToken};
use crate::key::Key;

/// Message of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WakeupMessage {
    /// A lock was offered to this queue entry of the process.
    Offer(LockToken),
    /// A process or a job joined the wait queue of a lock that this process holds.
    QueueJoin(Key, Contenders),
    /// The lock is offered to its first job.
    JobOffer(Key, JobId),
    /// The due index of a shard has an earlier entry.
    ShardDue(u16),
    /// A job has changed.
    JobChanged(JobId),
    /// A worker of a task queue has work.
    TasksReady(Arc<str>),
    /// Workers have come or gone, or have given up shards.
    WorkersChanged,
    /// An operator has changed policies.
    PoliciesChanged,
    /// An operator asks all processes for a report, about one lock or about everything.
    FleetInquiry(Arc<str>, Option<Key>),
    /// An operator has taken a lock from this process.
    ForcedRelease,
    /// An operator cancels the run of the job or task with this id.
    CancelRun(Arc<str>),
    /// An operator drains this process, or, with false, resumes it.
    ProcessDrain(bool),
    /// Messages may have been missed, so every listener polls.
    Resync,
}

impl WakeupMessage {
    /// Parses a message of the process's own channel.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let kind = parts.next()?;
        let key = Key::from_store(parts.next()?);
        match kind {
            "o" => LockToken::parse(parts.next()?).map(Self::Offer),
            "q" => Some(Self::QueueJoin(key, Contenders::from_waiter(parts.next()?.parse().ok()?))),
            "g" => Some(Self::QueueJoin(key, Contenders::from_job(parts.next()?.parse().ok()?))),
            "j" => Some(Self::JobOffer(key, JobId::parse(parts.next()?)?)),
            "d" => Some(Self::ShardDue(key.shard())),
            "x" => Some(Self::ForcedRelease),
            "drain" => Some(Self::ProcessDrain(key.as_str() == "on")),
            "t" => Some(Self::TasksReady(key.as_str().into())),
            _ => None,
        }
    }

    /// Encodes a message that one process sends to another. Returns `None` for the other kinds.
    pub(crate) fn encode(&self) -> Option<String> {
        match self {
            Self::JobOffer(key, id) => Some(format!("j {key} {id}")),
            Self::ProcessDrain(true) => Some("drain on".to_owned()),
            Self::ProcessDrain(false) => Some("drain off".to_owned()),
            Self::QueueJoin(..)
            | Self::Offer(_)
            | Self::ShardDue(_)
            | Self::JobChanged(_)
            | Self::TasksReady(_)
            | Self::WorkersChanged
            | Self::PoliciesChanged
            | Self::FleetInquiry(..)
            | Self::ForcedRelease
            | Self::CancelRun(_)
            | Self::Resync => None,
        }
    }

    /// Encodes an inquiry to all processes: `ask <inquiry>[ <lock>]`. Names have no blanks.
    #[cfg(feature = "redis")]
    pub(crate) fn encode_inquiry(inquiry: &str, lock: Option<&Key>) -> String {
        match lock {
            Some(lock) => format!("ask {inquiry} {lock}"),
            None => format!("ask {inquiry}"),
        }
    }

    /// Encodes the cancellation of a run, for all processes: `cancel <id>`. A process of an older
    /// version finds the id of a job in it, polls the job, and does nothing else.
    #[cfg(feature = "redis")]
    pub(crate) fn encode_cancellation(id: &str) -> String {
        format!("cancel {id}")
    }

    /// Parses an operator's message to all processes.
    fn parse_operator_message(text: &str) -> Option<Self> {
        let (keyword, text) = text.split_once(' ')?;
        match keyword {
            "ask" => {
                let (inquiry, lock) = text.split_once(' ').unwrap_or((text, ""));
                let lock = Some(lock).filter(|lock| !lock.is_empty()).map(Key::from_store);
                Some(Self::FleetInquiry(inquiry.into(), lock))
            }
            "cancel" => Some(Self::CancelRun(text.into())),
            _ => None,
        }
    }

    /// Parses a message of the event channels: one of an operator, a keyword, or the ids of all
    /// jobs that one call has changed.
    pub(crate) fn parse_events(text: &str) -> impl Iterator<Item = Self> {
        let message = Self::parse_operator_message(text);
        let events = if message.is_some() { "" } else { text };
        message.into_iter().chain(Self::parse_changes(events))
    }

    fn parse_changes(text: &str) -> impl Iterator<Item = Self> {
        let parse_event = |text| match text {
            "workers" => Some(Self::WorkersChanged),
            "limits" => Some(Self::PoliciesChanged),
            id => JobId::parse(id).map(Self::JobChanged),
        };
        text.split(' ').filter_map(parse_event)
    }
}
