//! Pub/sub messages to other processes: a job offer or an operator's order to one, and a change of
//! the workers of jobs to all.

use crate::{
    error::Error,
    store::{
        backend::NodeId,
        key_names::COMMON_SHARD,
        redis::{RedisBackend, script_sources},
        wakeup_message::WakeupMessage,
    },
};

impl RedisBackend {
    /// Sends a job offer or an operator's order to one process. Other messages are sent by the
    /// scripts.
    pub(super) async fn send_to_process(
        &self,
        node: NodeId,
        message: WakeupMessage,
    ) -> Result<(), Error> {
        let Some(text) = message.encode() else { return Ok(()) };
        let shard = match message {
            WakeupMessage::JobOffer(key, _) => key.shard(),
            _ => COMMON_SHARD,
        };
        self.publish(shard, format!("w:{node}"), text).await
    }

    /// Notifies all workers that some have joined or left.
    pub(super) async fn notify_membership_change(&self) -> Result<(), Error> {
        self.publish(COMMON_SHARD, "e".to_owned(), "workers".to_owned()).await
    }

    /// Publishes a message. In a cluster a script of the shard's cluster node does it, since the
    /// kind of message depends on the server.
    async fn publish(&self, shard: u16, channel: String, text: String) -> Result<(), Error> {
        let prefix = self.keys.channel_prefix();
        if self.keys.is_clustered() {
            let (keys, args) = ([self.keys.shard_key(shard, "watch")], [prefix, &channel, &text]);
            let args = args.map(|arg| arg.as_bytes().to_vec());
            return self.call_script(shard, &script_sources::PUBLISH, &keys, &args).await.map(drop);
        }
        let mut pipe = redis::pipe();
        pipe.cmd("PUBLISH").arg(format!("{prefix}{channel}")).arg(text);
        self.run_read_pipeline(COMMON_SHARD, "publish", &pipe).await.map(drop)
    }
}
