//! Subscriber: receives messages of other processes, on separate connections.
//!
//! Subscriptions begin at the first wait and are renewed when:
//!
//! - a connection breaks;
//! - a lane has met another server, since the old one may live on without the messages of its
//!   successor;
//! - a job is awaited for the first time. Before that, job events are not subscribed, which saves a
//!   worker one message for each of its own operations.
//!
//! Messages may be missed meanwhile, so all waiters poll after each renewal. In a cluster, each
//! cluster node has its own subscription ([`node_subscription`]).

mod message_subscriber;
mod node_subscription;
mod retry_delay;

use self::message_subscriber::{deliver_messages, deliver_wakeup};
pub(super) use self::{message_subscriber::MessageSubscriber, retry_delay::RetryDelay};
