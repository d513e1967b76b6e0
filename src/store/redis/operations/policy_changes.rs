//! The document by which operators change policies while processes run.

use redis::Value;

use super::number_arg;
use crate::{
    error::Error,
    store::{
        key_names::COMMON_SHARD,
        rate::StoredPolicyChanges,
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources::REPLACE_POLICY_CHANGES},
    },
};

impl RedisBackend {
    pub(super) async fn read_stored_policy_changes(&self) -> Result<StoredPolicyChanges, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(self.keys.limits()).arg("version").arg("document");
        let replies = self.run_read_pipeline(COMMON_SHARD, "read_policy_changes", &pipe).await?;
        let fields = replies.into_iter().next().unwrap_or(Value::Nil);
        if matches!(&fields, Value::Array(parts) if parts.first() == Some(&Value::Nil)) {
            return Ok(StoredPolicyChanges::default());
        }
        let mut reader = ReplyReader::new("read_policy_changes", fields);
        Ok(StoredPolicyChanges { version: reader.read_number()?, document: reader.read_text()? })
    }

    pub(super) async fn replace_stored_policy_changes(
        &self,
        old_version: u64,
        new: StoredPolicyChanges,
    ) -> Result<bool, Error> {
        let args = [
            number_arg(old_version),
            number_arg(new.version),
            new.document.into(),
            self.keys.channel_prefix().into(),
        ];
        let script = &REPLACE_POLICY_CHANGES;
        let reply = self.call_script(COMMON_SHARD, script, &[self.keys.limits()], &args).await?;
        Ok(ReplyReader::new(script.name, reply).read_number()? == 1)
    }
}
