//! Pub/sub messages to the workers of jobs: a job offer to one worker, and a membership change to
//! all.

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
    /// Sends a job offer to the worker of one node. Other messages are sent by the scripts.
    pub(super) async fn send_job_offer(
        &self,
        node: NodeId,
        message: WakeupMessage,
    ) -> Result<(), Error> {
        match (message.encode(), message) {
            (Some(text), WakeupMessage::JobOffer(key, _)) => {
                self.publish(key.shard(), format!("w:{node}"), text).await
            }
            _ => Ok(()),
        }
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
