//! `cargo xtask build-ptx`: compiles the kernels to host/ptx, or checks that what is committed
//! there is what they compile to.

use crate::cuda_builder::{self, ARCHS, Compiler, PTX_VERSION};
use crate::ptx::file::{self, SUFFIX};
use crate::ptx::manifest::Manifest;
use crate::ptx::{self, Program};
use crate::sources::{SharedArray, Sources, sha256};
use crate::{flags, new_seed, ptxas};
use anyhow::{Context, Result, bail, ensure};
use kernels_gpu::Entry;
use kernels_gpu::overlap::{OVERLAPS_FROM, overlapping};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use xshell::Shell;

const COMMITTED: &str = "host/ptx";
const MANIFEST: &str = "host/ptx/manifest.txt";
const KERNELS_DIR: &str = "kernels-gpu";

pub(crate) fn run(sh: &Shell, flags: &flags::BuildPtx) -> Result<()> {
    let (rustc, ptxas) = (flags.rustc.as_deref(), flags.ptxas.as_deref());
    if flags.check {
        let compared = check(sh, rustc, ptxas, false, Dtypes::All)?;
        if flags.require_bytes {
            compared.require_bytes()?;
        }
        println!("compared: {compared}");
        return Ok(());
    }
    build(sh, rustc, ptxas)
}

/// The dtypes whose kernels a check compiles again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dtypes {
    All,
    /// One, drawn at random each time, because all of them take minutes.
    Drawn,
}

/// What a check has compared.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Compared {
    /// The committed PTX of these dtypes with newly compiled PTX, and all hashes.
    Bytes(Vec<&'static str>),
    /// The hashes in the manifest with those of the source and of the committed PTX.
    Hashes,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compared::Bytes(dtypes) => {
                let dtypes = dtypes.join(", ");
                write!(f, "bytes of {dtypes}: compiled again, the PTX is the same to the byte")
            }
            Compared::Hashes => f.write_str("hashes only: the PTX was not compiled again"),
        }
    }
}

impl Compared {
    /// Fails unless bytes were compared, for a machine that must be able to compile the PTX.
    pub(crate) fn require_bytes(&self) -> Result<()> {
        ensure!(
            *self != Compared::Hashes,
            "--require-bytes: hashes alone were compared; the compiler that made the PTX, which \
             {MANIFEST} names, is needed here"
        );
        Ok(())
    }
}

fn build(sh: &Shell, rustc: Option<&Path>, ptxas: Option<&Path>) -> Result<()> {
    let is_asked = ptxas.is_some();
    let ptxas = ptxas::find(ptxas)?;
    let compilers = cuda_builder::find(sh, rustc, true)?;
    // Prefer the compiler that made the committed PTX, so that any difference comes from the
    // source.
    let old = Manifest::parse(&sh.read_file(MANIFEST).unwrap_or_default());
    let made_by = |old: Manifest| compilers.iter().find(|one| one.verbose == old.rustc);
    let Some(compiler) = old.ok().and_then(made_by).or(compilers.first()) else {
        bail!("{}", cuda_builder::how_to_install());
    };
    println!("compiler: {}", compiler.describe());
    let task = Task::new(sh)?;

    let mut table = Vec::new();
    let mut manifest = task.manifest();
    manifest.rustc.clone_from(&compiler.verbose);
    for arch in ARCHS {
        let modules = task.compile(compiler, arch, &task.dtypes())?;
        // Compile to another folder and check the PTX there, so that working PTX is not replaced by
        // PTX that may not work.
        let staged = PathBuf::from(format!("target/ptx/{arch}/modules"));
        sh.remove_path(&staged)?;
        let mut problems = Vec::new();
        for (module, text) in &modules {
            let file = staged.join(format!("{module}.ptx"));
            sh.write_file(&file, text)?;
            problems.extend(in_file(&file, task.check_text(arch, module, text)));
        }
        if let (Some(ptxas), []) = (&ptxas, &problems[..]) {
            for (module, text) in &modules {
                let file = staged.join(format!("{module}.ptx"));
                let found = task
                    .assemble(ptxas, arch, module, text, &mut table)
                    .with_context(|| file.display().to_string())?;
                problems.extend(in_file(&file, found.problems(is_asked)));
            }
        }
        fail_on(&problems)?;
        task.replace_committed(arch, &modules)?;
        for (module, text) in &modules {
            manifest.files.insert(in_manifest(arch, module), sha256(text.as_bytes()));
        }
    }
    let (file, text) = (Path::new(MANIFEST), manifest.to_string());
    let is_unchanged = sh.read_file(file).is_ok_and(|old| old == text);
    write_unless(is_unchanged, sh, file, || Ok(text.as_bytes()))?;
    for dir in task.unknown_dirs()? {
        remove(sh, &dir)?;
    }
    report(&table, ptxas.is_some());
    Ok(())
}

/// Fails if the committed PTX is stale, edited or wrong. Compares the hashes for all dtypes, and
/// the bytes for `dtypes`. Returns what was compared.
pub(crate) fn check(
    sh: &Shell,
    rustc: Option<&Path>,
    ptxas: Option<&Path>,
    install: bool,
    dtypes: Dtypes,
) -> Result<Compared> {
    let is_asked = ptxas.is_some();
    let ptxas = ptxas::find(ptxas)?;
    let task = Task::new(sh)?;
    let mut table = Vec::new();
    let text = sh.read_file(MANIFEST).unwrap_or_default();
    let manifest = Manifest::parse(&text).with_context(|| format!("{MANIFEST} will not do"))?;
    let mut problems: Vec<String> =
        in_file(Path::new(MANIFEST), manifest.problems(&task.manifest())).collect();
    for arch in ARCHS {
        for module in task.modules.keys() {
            let file = task.committed(arch, module);
            if !sh.path_exists(&file) {
                problems.push(format!("{}: missing", file.display()));
                continue;
            }
            let text = match read(sh, &file) {
                Ok(text) => text,
                Err(why) => {
                    problems.push(format!("{}: {why:#}", file.display()));
                    continue;
                }
            };
            let mut found = task.check_text(arch, module, &text);
            found.extend(manifest.problem_of(&in_manifest(arch, module), &text));
            if let (Some(ptxas), []) = (&ptxas, &found[..]) {
                found = task
                    .assemble(ptxas, arch, module, &text, &mut table)
                    .with_context(|| file.display().to_string())?
                    .problems(is_asked);
            }
            problems.extend(in_file(&file, found));
        }
        for file in task.unknown_files(arch)? {
            problems.push(format!("{}: no file of a module in the kernel table", file.display()));
        }
    }
    for dir in task.unknown_dirs()? {
        problems.push(format!("{}: not compiled for this", dir.display()));
    }
    let in_table = |file: &str| {
        let name = file.rsplit_once('/').and_then(|(_, name)| name.strip_suffix(".ptx"));
        name.is_some_and(|module| task.modules.contains_key(module))
    };
    for file in manifest.files.keys().filter(|file| !in_table(file)) {
        problems.push(format!("{MANIFEST}: the kernel table has no module for {file}"));
    }
    fail_on(&problems)
        .context("the committed PTX will not do; `cargo xtask build-ptx` makes it")?;
    report(&table, ptxas.is_some());

    let compilers = match cuda_builder::find(sh, rustc, install) {
        // A compiler that cannot be installed does not mean that the PTX is wrong.
        Err(why) if rustc.is_none() => {
            println!("{why:#}");
            Vec::new()
        }
        compilers => compilers?,
    };
    let Some(compiler) = compilers.iter().find(|one| one.verbose == manifest.rustc) else {
        match compilers.first() {
            Some(other) => {
                println!("the PTX was made by another compiler than {}", other.describe())
            }
            None => println!("{}", cuda_builder::how_to_install()),
        }
        return Ok(Compared::Hashes);
    };
    println!("compiler: {}", compiler.describe());
    let mut names = task.dtypes();
    if dtypes == Dtypes::Drawn {
        names = vec![names[new_seed() as usize % names.len()]];
    }
    for arch in ARCHS {
        for (module, text) in task.compile(compiler, arch, &names)? {
            let file = task.committed(arch, &module);
            if read(sh, &file)? != text {
                problems.push(format!(
                    "{}: not the text that this compiler makes of the same source",
                    file.display()
                ));
            }
        }
    }
    fail_on(&problems)?;
    Ok(Compared::Bytes(names))
}

/// What both commands know.
struct Task<'a> {
    sh: &'a Shell,
    sources: Sources,
    shared_arrays: Vec<SharedArray>,
    /// The kernel table, by module.
    modules: BTreeMap<&'static str, Vec<&'static Entry>>,
}

impl<'a> Task<'a> {
    fn new(sh: &'a Shell) -> Result<Self> {
        let sources = Sources::read(&sh.current_dir().join(KERNELS_DIR))?;
        let mut modules = BTreeMap::<_, Vec<_>>::new();
        for entry in kernels_gpu::all() {
            modules.entry(entry.module).or_default().push(entry);
        }
        Ok(Self { sh, shared_arrays: sources.shared_arrays(), sources, modules })
    }

    /// The file of a module in host/ptx, relative to the workspace.
    fn committed(&self, arch: &str, module: &str) -> PathBuf {
        PathBuf::from(format!("{COMMITTED}/{arch}/{module}{SUFFIX}"))
    }

    /// The names of all dtypes that there are kernels of.
    fn dtypes(&self) -> Vec<&'static str> {
        let entries = self.modules.values().flatten();
        let names: BTreeSet<_> = entries.map(|entry| entry.dtype.name()).collect();
        names.into_iter().collect()
    }

    /// The text of every module of these dtypes.
    fn compile(
        &self,
        compiler: &Compiler,
        arch: &str,
        dtypes: &[&str],
    ) -> Result<BTreeMap<String, String>> {
        let entries = || self.modules.values().flatten().copied();
        let mut files = BTreeMap::new();
        let mut problems = Vec::new();
        for (dtype, text) in dtypes.iter().zip(compiler.compile(self.sh, arch, dtypes)?) {
            let program = Program::parse(&text)?;
            let is_of_dtype = |entry: &&Entry| entry.dtype.name() == *dtype;
            problems.extend(ptx::check::extern_functions(&program));
            problems.extend(ptx::check::entries(
                &program,
                &Vec::from_iter(entries().filter(is_of_dtype)),
            ));
            for (module, entries) in &self.modules {
                if entries.iter().all(is_of_dtype) {
                    files.insert((*module).to_owned(), program.module(entries)?);
                }
            }
        }
        fail_on(&problems).context("the kernels do not compile to what their table says")?;
        Ok(files)
    }

    /// The manifest that the PTX should have, up to what its compiler adds.
    fn manifest(&self) -> Manifest {
        let flags = ARCHS.map(cuda_builder::flags);
        Manifest {
            source: self.sources.sha256(&flags.join("\n")),
            layouts: format!("{:016x}", kernels_gpu::LAYOUTS),
            rustc: String::new(),
            flags: ARCHS.map(str::to_owned).into_iter().zip(flags).collect(),
            files: BTreeMap::new(),
        }
    }

    /// All problems that the text of a module shows.
    fn check_text(&self, arch: &str, module: &str, text: &str) -> Vec<String> {
        match Program::parse(text) {
            Err(why) => vec![format!("{why:#}")],
            Ok(program) => ptx::check::module(
                &program,
                &ptx::check::Expected {
                    version: PTX_VERSION,
                    arch,
                    entries: &self.modules[module],
                    shared_arrays: &self.shared_arrays,
                },
            ),
        }
    }

    /// Assembles a module for each GPU, in the form that its driver gets, and adds its lines to the
    /// table.
    fn assemble(
        &self,
        ptxas: &Path,
        arch: &str,
        module: &str,
        text: &str,
        table: &mut Vec<[String; 9]>,
    ) -> Result<Assembled> {
        let output = self.sh.create_dir("target/ptx")?.join("assembled.cubin");
        let mut assembled = Assembled::default();
        for gpu in ptxas::gpus(arch) {
            let overlaps = ptxas::capability(gpu) >= OVERLAPS_FROM;
            let text = if overlaps { overlapping(text) } else { text.to_owned() };
            let input = Path::new("target/ptx/assembled.ptx");
            self.sh.write_file(input, text)?;
            let usages = ptxas::assemble(self.sh, ptxas, input, gpu, &output)?;
            assembled.spills.extend(usages.iter().filter_map(|usage| usage.spill(gpu)));
            for entry in &self.modules[module] {
                match usages.iter().find(|usage| usage.function == entry.name) {
                    Some(usage) => table.push(usage.row(arch, gpu)),
                    None => {
                        assembled.missing.push(format!("{}: ptxas says nothing of it", entry.name));
                    }
                }
            }
        }
        Ok(assembled)
    }

    fn replace_committed(&self, arch: &str, modules: &BTreeMap<String, String>) -> Result<()> {
        for (module, text) in modules {
            let file = self.committed(arch, module);
            // Compare texts, because another version of the compressor may have written the bytes.
            let is_unchanged = read(self.sh, &file).is_ok_and(|old| old == *text);
            write_unless(is_unchanged, self.sh, &file, || file::compress(text))?;
        }
        for file in self.unknown_files(arch)? {
            remove(self.sh, &file)?;
        }
        Ok(())
    }

    /// PTX files that belong to no module of the table, or that are not compressed. All of them
    /// would be packaged.
    fn unknown_files(&self, arch: &str) -> Result<Vec<PathBuf>> {
        let mut files = list(self.sh, &format!("{COMMITTED}/{arch}"))?;
        files.retain(|file| {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let module = name.strip_suffix(SUFFIX);
            name.ends_with(".ptx") || module.is_some_and(|name| !self.modules.contains_key(name))
        });
        Ok(files)
    }

    /// Directories of architectures that nothing is compiled for.
    fn unknown_dirs(&self) -> Result<Vec<PathBuf>> {
        let mut dirs = list(self.sh, COMMITTED)?;
        dirs.retain(|dir| {
            let name = dir.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("sm_") && !ARCHS.contains(&name))
        });
        Ok(dirs)
    }
}

/// What ptxas found in a module.
#[derive(Default)]
struct Assembled {
    /// Entries that it does not report.
    missing: Vec<String>,
    /// Entries that spill registers.
    spills: Vec<String>,
}

impl Assembled {
    /// The problems. Spills are problems only if the user named a ptxas (`is_asked`). A ptxas that
    /// happens to be in `PATH` may be of any version, and versions allocate registers differently,
    /// so its spills are only printed.
    fn problems(self, is_asked: bool) -> Vec<String> {
        let Assembled { mut missing, spills } = self;
        if is_asked {
            missing.extend(spills);
        } else {
            spills.iter().for_each(|spill| println!("note: {spill}"));
        }
        missing
    }
}

/// A module's path in the manifest, which has the hashes of the texts.
fn in_manifest(arch: &str, module: &str) -> String {
    format!("{arch}/{module}.ptx")
}

/// The text in the file of a module.
fn read(sh: &Shell, file: &Path) -> Result<String> {
    file::decompress(&sh.read_binary_file(file)?)
}

/// Writes a file unless its text is unchanged. Then it keeps its bytes and its time, so it is
/// neither committed again nor does anything that includes it compile again.
fn write_unless<B: AsRef<[u8]>>(
    is_unchanged: bool,
    sh: &Shell,
    file: &Path,
    bytes: impl FnOnce() -> Result<B>,
) -> Result<()> {
    if is_unchanged {
        println!("unchanged {}", file.display());
        return Ok(());
    }
    sh.write_file(file, bytes()?)?;
    println!("wrote {}", file.display());
    Ok(())
}

/// The entries of a directory of the workspace, as paths relative to the workspace.
fn list(sh: &Shell, dir: &str) -> Result<Vec<PathBuf>> {
    if !sh.path_exists(dir) {
        return Ok(Vec::new());
    }
    let name = |path: PathBuf| Some(Path::new(dir).join(path.file_name()?));
    Ok(sh.read_dir(dir)?.into_iter().filter_map(name).collect())
}

fn remove(sh: &Shell, path: &Path) -> Result<()> {
    println!("removing {}", path.display());
    Ok(sh.remove_path(path)?)
}

fn in_file(file: &Path, problems: Vec<String>) -> impl Iterator<Item = String> {
    let file = file.display().to_string();
    problems.into_iter().map(move |problem| format!("{file}: {problem}"))
}

fn fail_on(problems: &[String]) -> Result<()> {
    match problems {
        [] => Ok(()),
        _ => bail!("{}", problems.join("\n")),
    }
}

/// Prints what ptxas found.
fn report(table: &[[String; 9]], ptxas: bool) {
    if !ptxas {
        println!("no ptxas here: registers and spills were not looked at");
        return;
    }
    let headings = ptxas::Usage::HEADINGS.map(str::to_owned);
    let rows = || std::iter::once(&headings).chain(table);
    for row in rows() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows().map(|row| row[column].len()).max().unwrap_or(0);
            if column < 3 {
                line += &format!("{cell:width$}  ");
            } else {
                line += &format!("{cell:>width$}  ");
            }
        }
        println!("{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another ptxas may allocate registers differently, which is no reason to refuse the PTX.
    #[test]
    fn spills_are_problems_if_ptxas_is_asked_for() {
        let assembled = || Assembled {
            missing: vec!["no entry".to_owned()],
            spills: vec!["a spill".to_owned()],
        };
        assert_eq!(assembled().problems(true), ["no entry", "a spill"]);
        assert_eq!(assembled().problems(false), ["no entry"]);
    }
}
