//! The audit log: one hash in the common shard.

use super::number_arg;
use crate::{
    error::Error,
    store::{
        inspection::{AUDIT_CAPACITY, AuditEntry, MAX_AUDIT_PAGE},
        key_names::COMMON_SHARD,
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    pub(super) async fn append_to_audit_log(&self, record: String) -> Result<u64, Error> {
        let (keys, args) = ([self.keys.audit()], [record.into_bytes(), number_arg(AUDIT_CAPACITY)]);
        let script = &script_sources::APPEND_AUDIT_RECORD;
        let reply = self.call_script(COMMON_SHARD, script, &keys, &args).await?;
        ReplyReader::new(script.name, reply).read_number()
    }

    pub(super) async fn replace_in_audit_log(
        &self,
        number: u64,
        initial: String,
        finished: String,
    ) -> Result<bool, Error> {
        let args = [number_arg(number), initial.into_bytes(), finished.into_bytes()];
        let script = &script_sources::REPLACE_AUDIT_RECORD;
        let reply = self.call_script(COMMON_SHARD, script, &[self.keys.audit()], &args).await?;
        Ok(ReplyReader::new(script.name, reply).read_number()? == 1)
    }

    pub(super) async fn read_audit_log(
        &self,
        before: u64,
        max_records: usize,
    ) -> Result<Vec<AuditEntry>, Error> {
        let max_records = max_records.min(MAX_AUDIT_PAGE) as u64;
        let args = [number_arg(before), number_arg(max_records)];
        let script = &script_sources::READ_AUDIT_RECORDS;
        let reply = self.call_script(COMMON_SHARD, script, &[self.keys.audit()], &args).await?;
        let mut reader = ReplyReader::new(script.name, reply);
        let mut entries = Vec::new();
        while !reader.is_empty() {
            let (number, stored) = (reader.read_number()?, reader.read_text()?);
            let entry = AuditEntry::parse(number, &stored);
            entries.push(entry.ok_or_else(|| reader.protocol_error())?);
        }
        Ok(entries)
    }
}
