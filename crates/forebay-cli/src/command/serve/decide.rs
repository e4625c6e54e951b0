//! Combines flags, environment and configuration file into the final settings of the server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_cache::Cache;
use forebay_cache::ReadOptions;
use forebay_image::Limits;
use forebay_loader::Mix;
use forebay_monitor::AdminOptions;
use forebay_options::DEFAULT_BATCH_SIZE;
use forebay_server::{
    JobOptions, Pixels, Server, ServerObserver, ServerOptions, ServerTls, Synthetic, Token, Tokens,
    key_is_readable_by_others,
};
use forebay_shard::{Dataset, Split, some_of};

use super::config::{Config, Job, MixTable, Size, Time};
use super::entry::{Entry, facts};
use super::{Args, LogFormat, job};
use crate::console::Console;
use crate::failure::Failure;
use crate::input::{Input, show, synthetic};
use crate::quantity;

/// The final settings of the server.
pub(super) struct Decided {
    pub(super) log_format: LogFormat,
    pub(super) admin_listen: Option<SocketAddr>,
    pub(super) health_listen: Option<SocketAddr>,
    /// Whether the dashboard shows images; `None` if it is not configured.
    admin_images: Option<bool>,
    /// Cache for datasets in stores.
    cache: Option<Arc<Cache>>,
    options: ServerOptions,
    /// Store and cache options for datasets in stores.
    read: ReadOptions,
    datasets: Vec<(String, PathBuf)>,
    /// Weights by dataset name; datasets without a weight are missing.
    weights: BTreeMap<String, f64>,
    mixes: BTreeMap<String, MixTable>,
    jobs: Vec<(String, Job)>,
    file: Option<PathBuf>,
}

/// Environment variable with a token that is valid for all datasets and jobs.
const TOKEN: &str = "FOREBAY_TOKEN";

impl Args {
    /// Returns whether the log is JSON, from the flag or the file. Errors of the file are ignored here, and reported later.
    pub(crate) fn logs_json(&self) -> bool {
        let by_file = || match &self.sources[..] {
            [only] if is_config(only) => Config::read(only).ok()?.log_format,
            _ => None,
        };
        self.log_format.or_else(by_file) == Some(LogFormat::Json)
    }
}

impl Decided {
    pub(super) fn new(args: Args, console: &Console) -> Result<Decided, Failure> {
        let (file, config) = match &args.sources[..] {
            [only] if is_config(only) => (Some(only.clone()), Config::read(only)?),
            _ => (None, Config::default()),
        };
        let datasets = datasets(&args, &config, file.as_deref())?;
        let named_job = args.job.job()?;
        if let (Some((name, _)), Some(path)) = (&named_job, &file) {
            let text = format!("--job {name} and {}: jobs are in the file", show(path));
            return Err(Failure::usage(text).hint(format!("write a table: [jobs.{name}]")));
        }
        let options = server_options(&args, &config)?;
        let cache = args
            .cache
            .open_for(datasets.iter().map(|(_, path)| path), console)?;
        Ok(Decided {
            read: ReadOptions::new(args.store.options()).with_cache(cache.clone()),
            cache,
            admin_listen: args.admin_listen.or(config.admin_listen),
            health_listen: config.health_listen,
            admin_images: config.admin_images,
            log_format: args.log_format.or(config.log_format).unwrap_or_default(),
            options,
            datasets,
            weights: config
                .datasets
                .iter()
                .filter_map(|(name, dataset)| Some((name.clone(), dataset.weight?)))
                .collect(),
            mixes: config.mixes,
            jobs: config.jobs.into_iter().chain(named_job).collect(),
            file,
        })
    }

    /// Returns the options of the dashboard on `address`. Since images may be private, a dashboard that other machines can reach
    /// shows images only if this is configured.
    pub(super) fn admin_options(&self, address: SocketAddr) -> AdminOptions {
        AdminOptions {
            images: self.admin_images.unwrap_or(address.ip().is_loopback()),
            cache: self.cache.clone(),
            ..AdminOptions::default()
        }
    }

    /// Returns the scheme of the server's URLs.
    pub(super) fn scheme(&self) -> &'static str {
        match self.options.tls {
            Some(_) => "forebays",
            None => "forebay",
        }
    }

    /// Returns warnings about valid but insecure settings.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let options = &self.options;
        let listen = options.listen;
        let knows = !options.tokens.is_empty()
            || options
                .tls
                .as_ref()
                .is_some_and(|tls| tls.client_ca.is_some());
        if !listen.ip().is_loopback() {
            match (&options.tls, knows) {
                (Some(_), true) => {}
                (Some(_), false) => warnings.push(format!(
                    "clients that reach {listen} can read all data: no token is required"
                )),
                (None, true) => warnings.push(format!(
                    "tokens and batches travel unencrypted to and from {listen}: there is no TLS, so clients elsewhere keep their tokens"
                )),
                (None, false) => warnings.push(format!(
                    "clients that reach {listen} can read all data: no encryption, no token"
                )),
            }
        }
        if let Some(address) = self.admin_listen.filter(|at| !at.ip().is_loopback()) {
            warnings.push(format!(
                "anyone who reaches {address} reads names, rates and addresses of trainers: the dashboard and metrics ask for no token"
            ));
        }
        let key = options.tls.as_ref().map(|tls| ("key", &tls.key));
        let tokens = options
            .tokens
            .file
            .as_ref()
            .map(|file| ("token file", file));
        for (name, file) in key.into_iter().chain(tokens) {
            if key_is_readable_by_others(file).unwrap_or(false) {
                let file = show(file);
                warnings.push(format!(
                    "the {name} {file} can be read by everybody on this machine: chmod 600 it"
                ));
            }
        }
        warnings
    }

    /// Binds the address, opens the datasets, and adds them and the jobs to the server.
    pub(super) fn server(
        &self,
        observer: impl ServerObserver + 'static,
    ) -> Result<(Server, Vec<Entry>), Failure> {
        let mut options = self.options.clone();
        options.observer = Arc::new(observer);
        let mut server = Server::bind(options)?;
        let mut entries = Vec::new();
        let mut opened = BTreeMap::new();
        for (name, path) in &self.datasets {
            if let Some(recipe) = synthetic(path)?.filter(|recipe| !recipe.decode) {
                let source = Synthetic::new(recipe.records, Pixels::Arbitrary);
                server.add_source(name, Arc::new(source))?;
                entries.push(Entry::of(name, [("train", recipe.records)]));
                continue;
            }
            let dataset = Input::dataset_with(path, &self.read)?.open_dataset()?;
            server.add_dataset(name, &dataset)?;
            let splits = dataset.manifest().splits.iter();
            let splits = splits.map(|split| (split.name.as_str(), split.records));
            entries.push(Entry::of(name, splits));
            opened.insert(name.as_str(), dataset);
        }
        for (name, table) in &self.mixes {
            let wrong =
                |what: String| Failure::usage(format!("{}, [mixes.{name}]: {what}", self.file()));
            let datasets = table.datasets.iter().map(|dataset| {
                let names: Vec<&str> = opened.keys().copied().collect();
                opened.get(dataset.as_str()).cloned().ok_or_else(|| {
                    let names = crate::failure::counted_choices(&names);
                    wrong(format!("there is no dataset {dataset:?}, but {names}"))
                })
            });
            let datasets: Vec<Dataset> = datasets.collect::<Result<_, _>>()?;
            let mixes = Mix::of_datasets(&datasets, &table.weights, &table.labels);
            let mixes = mixes.map_err(|error| wrong(error.to_string()))?;
            let splits = mixes.iter().map(|mix| {
                let records = mix.splits.iter().map(Split::len);
                (mix.split(), records.sum())
            });
            entries.push(Entry::of(name, splits));
            server.add_mix(name, &datasets, mixes)?;
        }
        for (name, weight) in &self.weights {
            set_weight(&mut server, name, *weight).map_err(|what| {
                Failure::usage(format!("{}, [datasets.{name}]: {what}", self.file()))
            })?;
        }
        for (name, job) in &self.jobs {
            let entry = self.add_job(&mut server, &entries, name, job)?;
            entries.push(entry);
        }
        Ok((server, entries))
    }

    fn add_job(
        &self,
        server: &mut Server,
        datasets: &[Entry],
        name: &str,
        job: &Job,
    ) -> Result<Entry, Failure> {
        let wrong = |what: String| {
            Failure::usage(match self.file {
                Some(_) => format!("{}, [jobs.{name}]: {what}", self.file()),
                None => format!("--job {name}: {what}"),
            })
        };
        let only = match &self.datasets[..] {
            [(only, _)] => Some(only.as_str()),
            _ => None,
        };
        let dataset = job.dataset.as_deref().or(only).ok_or_else(|| {
            wrong("dataset = \"NAME\" is missing, and there are several".to_owned())
        })?;
        let known = datasets
            .iter()
            .find(|entry| entry.name == dataset && entry.job.is_none());
        let Some(known) = known else {
            let names = datasets.iter().filter(|entry| entry.job.is_none());
            let names: Vec<&str> = names.map(|entry| entry.name.as_str()).collect();
            let names = crate::failure::counted_choices(&names);
            return Err(wrong(format!(
                "there is no dataset {dataset:?}, but {names}"
            )));
        };
        let mut options = job::options(job).map_err(wrong)?;
        if let (None, [only]) = (&options.split, &known.splits[..]) {
            options.split = Some(only.name.clone());
        }
        let Some(split) = options.split.clone() else {
            let names = known.splits.iter().map(|split| &split.name);
            return Err(wrong(format!(
                "split = \"NAME\" is missing: {dataset} has {}",
                some_of(names)
            )));
        };
        let ranks = match options.world_size {
            None => "any number of ranks".to_owned(),
            Some(n) => quantity::counted(n, "rank", "ranks"),
        };
        let line = format!(
            "a job: {dataset}/{split}, {ranks} of {} samples a batch, seed {}",
            options.batch_size.unwrap_or(DEFAULT_BATCH_SIZE),
            options.seed.unwrap_or(0)
        );
        let options = JobOptions {
            dataset: dataset.to_owned(),
            options,
        };
        server
            .add_job(name, options)
            .map_err(|e| wrong(e.to_string()))?;
        if let Some(weight) = job.weight {
            set_weight(server, name, weight).map_err(wrong)?;
        }
        let splits = known.splits.iter().filter(|known| known.name == split);
        let info = server.job(name);
        Ok(Entry {
            name: name.to_owned(),
            dataset: dataset.to_owned(),
            splits: splits.cloned().collect(),
            job: Some(line),
            more: info.map_or_else(Vec::new, |info| facts(&info, job.weight)),
        })
    }

    /// Returns the path of the configuration file for errors.
    fn file(&self) -> String {
        self.file.as_deref().map(show).unwrap_or_default()
    }

    /// Returns lines that describe the settings.
    pub(super) fn describe(&self) -> Vec<String> {
        let options = &self.options;
        let mut lines = vec![match &options.tls {
            Some(tls) => format!(
                "TLS 1.3 with {}{}",
                show(&tls.cert),
                match &tls.client_ca {
                    Some(ca) => format!(", clients need a certificate signed by {}", show(ca)),
                    None => String::new(),
                }
            ),
            None => "no TLS".to_owned(),
        }];
        lines.push(match (&options.tokens.file, options.tokens.fixed.len()) {
            (None, 0) => "no tokens: everybody is let in".to_owned(),
            (None, _) => format!("one token, of {TOKEN}"),
            (Some(file), 0) => format!("tokens of {}", show(file)),
            (Some(file), _) => format!("tokens of {} and {TOKEN}", show(file)),
        });
        let per_address = match options.max_connections_per_address {
            Some(most) if most > 0 => format!(", {most} from one address"),
            _ => String::new(),
        };
        lines.push(format!(
            "at most {} connections{per_address}",
            options.max_connections
        ));
        lines.push(match options.shared_batches_bytes {
            0 => "each stream decodes for itself".to_owned(),
            bytes => format!(
                "streams with the same options share batches, {} of them at most",
                quantity::bytes(bytes)
            ),
        });
        lines.push(match options.total_memory() {
            u64::MAX => "streams hold as much as they want together".to_owned(),
            bytes => format!("streams hold at most {} together", quantity::bytes(bytes)),
        });
        if options.bandwidth > 0 {
            lines.push(format!(
                "at most {} a second to trainers elsewhere",
                quantity::bytes(options.bandwidth)
            ));
        }
        if let Some(address) = self.admin_listen {
            lines.push(format!(
                "dashboard and metrics on http://{address}, {} pictures",
                if self.admin_options(address).images {
                    "with"
                } else {
                    "without"
                }
            ));
        }
        if let Some(address) = self.health_listen {
            lines.push(format!("health and readiness on http://{address}"));
        }
        lines
    }
}

/// Returns the names and locations of the datasets to serve, from the file or from the command line.
fn datasets(
    args: &Args,
    config: &Config,
    file: Option<&Path>,
) -> Result<Vec<(String, PathBuf)>, Failure> {
    match file {
        Some(path) => {
            if args.name.is_some() {
                let text = "--name names one dataset, and CONFIG.toml names its own";
                return Err(Failure::usage(text));
            }
            if config.datasets.is_empty() {
                let text = format!("{} names no dataset", show(path));
                return Err(Failure::usage(text)
                    .hint("add a table: [datasets.NAME], with path = \"DIRECTORY\""));
            }
            let named = |(name, dataset): (&String, &super::config::Dataset)| {
                (name.clone(), dataset.path.clone())
            };
            Ok(config.datasets.iter().map(named).collect())
        }
        None => named_sources(args),
    }
}

/// Returns the options of the server: flags take precedence over the file, and both over defaults.
fn server_options(args: &Args, config: &Config) -> Result<ServerOptions, Failure> {
    let limits = &config.limits;
    let defaults = ServerOptions::default();
    let image_limits = Limits::default();
    let time = |file: Option<Time>, default| file.map_or(default, |time| time.0);
    let size = |flag: Option<u64>, file: Option<Size>| flag.or(file.map(|size| size.0));
    Ok(ServerOptions {
        listen: args.listen.or(config.listen).unwrap_or(defaults.listen),
        allow_remote: args.insecure || config.insecure.unwrap_or(false),
        tls: tls(args, config)?,
        tokens: Tokens {
            fixed: environment_token()?.into_iter().collect(),
            file: args.token_file.clone().or(config.token_file.clone()),
        },
        max_connections: args
            .max_connections
            .or(limits.max_connections)
            .unwrap_or(defaults.max_connections),
        max_connections_per_address: limits.max_connections_per_address,
        handshake_timeout: time(limits.handshake_timeout, defaults.handshake_timeout),
        drain_timeout: time(config.drain_timeout, defaults.drain_timeout),
        max_batch_bytes: size(None, limits.max_batch_bytes).unwrap_or(defaults.max_batch_bytes),
        image_limits: Limits {
            max_pixels: limits.max_pixels.unwrap_or(image_limits.max_pixels),
            max_decoded_bytes: size(None, limits.max_image_bytes)
                .unwrap_or(image_limits.max_decoded_bytes),
            ..image_limits
        },
        stream_memory_bytes: size(args.memory, limits.memory),
        total_memory_bytes: size(None, limits.total_memory),
        shared_memory_bytes: args
            .shared_memory
            .or(limits.shared_memory.map(|shared| shared.0))
            .unwrap_or(defaults.shared_memory_bytes),
        stream_threads: args
            .threads
            .map(NonZeroUsize::get)
            .or(limits.threads.filter(|&threads| threads > 0)),
        shared_batches_bytes: limits
            .shared_batches
            .map_or(defaults.shared_batches_bytes, |shared| shared.0),
        bandwidth: size(args.bandwidth, limits.bandwidth).unwrap_or(defaults.bandwidth),
        ..defaults
    })
}

fn set_weight(server: &mut Server, name: &str, weight: f64) -> Result<(), String> {
    if !(weight.is_finite() && weight > 0.0) {
        return Err(format!("weight is {weight}: expected a number above 0"));
    }
    server.set_weight(name, weight).map_err(|e| e.to_string())
}

/// Returns whether an argument is a configuration file and not a dataset.
fn is_config(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "toml")
        && !path.is_dir()
}

/// Returns the names and locations of the datasets on the command line.
fn named_sources(args: &Args) -> Result<Vec<(String, PathBuf)>, Failure> {
    if let Some(config) = args.sources.iter().find(|path| is_config(path)) {
        let text = format!("{} is a configuration: give it alone", show(config));
        return Err(Failure::usage(text).hint("name further datasets in it"));
    }
    if args.name.is_some() && args.sources.len() > 1 {
        let text = "--name names one dataset, and there are several";
        return Err(Failure::usage(text).hint("name them in a CONFIG.toml: docs/serving.md"));
    }
    let mut named: Vec<(String, PathBuf)> = Vec::new();
    for source in &args.sources {
        if let Some(recipe) = synthetic(source)? {
            let name = args.name.as_deref().unwrap_or(recipe.name());
            add_source(&mut named, name.to_owned(), source, source)?;
            continue;
        }
        let input = Input::dataset(source, &args.store.options())?;
        let root = input.path();
        let name = decide_name(args.name.as_deref(), root)?;
        add_source(&mut named, name, root, source)?;
    }
    Ok(named)
}

/// Adds a dataset. Returns an error that names `root` if another dataset has the same name.
fn add_source(
    named: &mut Vec<(String, PathBuf)>,
    name: String,
    root: &Path,
    source: &Path,
) -> Result<(), Failure> {
    if let Some((_, other)) = named.iter().find(|(known, _)| *known == name) {
        let text = format!("{} and {} are both called {name}", show(other), show(root));
        return Err(Failure::usage(text).hint("name them in a CONFIG.toml: docs/serving.md"));
    }
    named.push((name, source.to_owned()));
    Ok(())
}

/// Returns the dataset's name in URLs: that of `--name`, or the name of the directory with invalid characters replaced by `-`.
fn decide_name(named: Option<&str>, root: &Path) -> Result<String, Failure> {
    if let Some(name) = named {
        return Ok(name.to_owned());
    }
    // Canonicalization gives `.` and `..` the name of the directory.
    let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let name: String = real
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || ".-_".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    if name.is_empty() {
        Err(Failure::usage(format!("{} has no name", show(root)))
            .hint("give the dataset one with --name NAME"))
    } else {
        Ok(name)
    }
}

fn tls(args: &Args, config: &Config) -> Result<Option<ServerTls>, Failure> {
    let file = config.tls.as_ref();
    let cert = args.tls_cert.clone().or_else(|| Some(file?.cert.clone()));
    let key = args.tls_key.clone().or_else(|| Some(file?.key.clone()));
    let client_ca = args
        .tls_client_ca
        .clone()
        .or_else(|| file?.client_ca.clone());
    match (cert, key, client_ca) {
        (Some(cert), Some(key), client_ca) => Ok(Some(ServerTls {
            cert,
            key,
            client_ca,
        })),
        (None, None, None) => Ok(None),
        (None, None, Some(_)) => Err(Failure::usage(
            "--tls-client-ca asks for certificates of clients, and the server has none of its own",
        )
        .hint("give --tls-cert and --tls-key too")),
        (Some(_), None, _) => Err(Failure::usage("--tls-cert without its --tls-key")),
        (None, Some(_), _) => Err(Failure::usage("--tls-key without its --tls-cert")),
    }
}

fn environment_token() -> Result<Option<Token>, Failure> {
    let Some(text) = std::env::var_os(TOKEN).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let from = format_args!("the environment variable {TOKEN}");
    Token::new(text.to_string_lossy().trim(), from)
        .map(Some)
        .map_err(|e| Failure::usage(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_in_urls() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("my shards!");
        std::fs::create_dir(&root).unwrap();
        assert_eq!(decide_name(None, &root).unwrap(), "my-shards-");
        assert_eq!(decide_name(Some("x"), &root).unwrap(), "x");
        assert!(decide_name(None, Path::new("/")).is_err());
    }
}
