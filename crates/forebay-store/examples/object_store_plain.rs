//! Uses the object_store crate as its documentation shows, as the baseline of `tools/peers/bench_store.py`.
//!
//!     object_store_plain put|get ENDPOINT BUCKET KEY FILE
//!
//! Credentials come from the AWS_ variables. Uploads are multipart, eight parts of 8 MiB at a time; downloads are one GET.
//! No checksum is verified and no file is fsynced.

use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStoreExt, WriteMultipart};
use std::fs::File;
use std::io::{Read, Write};

const PART_BYTES: usize = 8 << 20;
const PARTS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, endpoint, bucket, key, file] = arguments.as_slice() else {
        return Err("object_store_plain put|get ENDPOINT BUCKET KEY FILE".into());
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = AmazonS3Builder::from_env()
        .with_endpoint(endpoint)
        .with_bucket_name(bucket)
        .with_allow_http(true)
        .build()?;
    let key = Path::parse(key)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if what == "put" {
            let mut file = File::open(file)?;
            let upload = store.put_multipart(&key).await?;
            let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
            let mut part = vec![0; PART_BYTES];
            loop {
                let read = file.read(&mut part)?;
                if read == 0 {
                    break;
                }
                writer.wait_for_capacity(PARTS).await?;
                writer.write(&part[..read]);
            }
            writer.finish().await?;
        } else {
            let mut file = File::create(file)?;
            let mut bytes = store.get(&key).await?.into_stream();
            while let Some(piece) = bytes.next().await {
                file.write_all(&piece?)?;
            }
        }
        Ok(())
    })
}
