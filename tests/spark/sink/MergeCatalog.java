import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Stream;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog for tests, of tables that support MERGE: each version of a table is one file, created in one step.
 *
 * Tables with the property `rows` = `delta` take deletes, updates and inserts of single rows, as a lake format with
 * merge-on-read does; the others replace all their rows, as with copy-on-write. A write of a version that was
 * superseded while the write was planned is rejected.
 */
public final class MergeCatalog implements TableCatalog {
  private static final String ROW = "_row";

  private String name;
  private Path folder;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.folder = Path.of(options.get("path"));
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    try (Stream<Path> files = Files.list(folder)) {
      return files.map(file -> Identifier.of(namespace, file.getFileName().toString())).toArray(Identifier[]::new);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    Path path = folder.resolve(identifier.toString());
    if (!Files.exists(path.resolve("schema"))) {
      throw new NoSuchTableException(identifier);
    }
    try {
      StructType schema = (StructType) DataType.fromJson(Files.readString(path.resolve("schema")));
      return Files.exists(path.resolve("delta")) ? new DeltaRows(path, schema) : new Rows(path, schema);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  @SuppressWarnings("deprecation") // of which the other form is made
  public Table createTable(Identifier id, Column[] columns, Transform[] parts, Map<String, String> properties) {
    Path path = folder.resolve(id.toString());
    try {
      Files.createDirectories(path);
      if ("delta".equals(properties.get("rows"))) {
        Files.createFile(path.resolve("delta"));
      }
      Files.writeString(path.resolve("schema"), CatalogV2Util.v2ColumnsToStructType(columns).json());
      return loadTable(id);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } catch (NoSuchTableException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes) {
    throw new UnsupportedOperationException("ALTER TABLE");
  }

  @Override
  public boolean dropTable(Identifier identifier) {
    throw new UnsupportedOperationException("DROP TABLE");
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException("RENAME TABLE");
  }

  /** The rows of one version, and how the next one is made. */
  private static final class Version {
    private final Path folder;
    private final int columns;
    private final int number;

    Version(Path folder, int columns) {
      this.folder = folder;
      this.columns = columns;
      int last = 0;
      while (Files.exists(folder.resolve("v" + (last + 1)))) {
        last++;
      }
      this.number = last;
    }

    List<byte[]> rows() {
      if (number == 0) {
        return new ArrayList<>();
      }
      try (DataInputStream in = new DataInputStream(Files.newInputStream(folder.resolve("v" + number)))) {
        return read(in);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    void replace(List<byte[]> rows) {
      try {
        Path file = Files.createTempFile(folder, "next", "");
        try (DataOutputStream out = new DataOutputStream(Files.newOutputStream(file))) {
          write(out, rows);
        }
        Files.createLink(folder.resolve("v" + (number + 1)), file); // fails if there is one
        Files.delete(file);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    UnsafeRow decode(byte[] bytes) {
      UnsafeRow row = new UnsafeRow(columns);
      row.pointTo(bytes, bytes.length);
      return row;
    }
  }

  private static class Rows implements SupportsRead, SupportsWrite, SupportsRowLevelOperations {
    final Path path;
    final StructType schema;

    Rows(Path path, StructType schema) {
      this.path = path;
      this.schema = schema;
    }

    @Override
    public String name() {
      return path.getFileName().toString();
    }

    @Override
    @SuppressWarnings("deprecation")
    public StructType schema() {
      return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new RowScan(new Version(path, schema.size()), schema);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return building(new Changes(info.schema(), new Version(path, schema.size()), true));
    }

    @Override
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
      Version version = new Version(path, schema.size());
      return () -> new ReplaceAll(info.command(), version, schema);
    }
  }

  private static final class DeltaRows extends Rows implements SupportsMetadataColumns {
    DeltaRows(Path path, StructType schema) {
      super(path, schema);
    }

    @Override
    public MetadataColumn[] metadataColumns() {
      return new MetadataColumn[] {new RowNumber()};
    }

    @Override
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
      Version version = new Version(path, schema.size());
      return () -> new ChangeRows(info.command(), version, schema);
    }
  }

  private static final class RowNumber implements MetadataColumn {
    @Override
    public String name() {
      return ROW;
    }

    @Override
    public DataType dataType() {
      return DataTypes.LongType;
    }

    @Override
    public boolean isNullable() {
      return false;
    }
  }

  /** Copy-on-write: what is written are all rows, changed or not. */
  private static final class ReplaceAll implements RowLevelOperation {
    private final Command command;
    private final Version version;
    private final StructType schema;

    ReplaceAll(Command command, Version version, StructType schema) {
      this.command = command;
      this.version = version;
      this.schema = schema;
    }

    @Override
    public Command command() {
      return command;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new RowScan(version, schema);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return building(new Changes(info.schema(), version, false));
    }
  }

  /** Merge-on-read: what is written are the changes. */
  private static final class ChangeRows implements SupportsDelta {
    private final Command command;
    private final Version version;
    private final StructType schema;

    ChangeRows(Command command, Version version, StructType schema) {
      this.command = command;
      this.version = version;
      this.schema = schema;
    }

    @Override
    public Command command() {
      return command;
    }

    @Override
    public NamedReference[] rowId() {
      return new NamedReference[] {Expressions.column(ROW)};
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new RowScan(version, schema);
    }

    @Override
    public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      DeltaBatchWrite batch = new Changes(schema, version, true);
      DeltaWrite write = new DeltaWrite() {
        @Override
        public DeltaBatchWrite toBatch() {
          return batch;
        }
      };
      return new DeltaWriteBuilder() {
        @Override
        public DeltaWrite build() {
          return write;
        }
      };
    }
  }

  private static WriteBuilder building(BatchWrite batch) {
    Write write = new Write() {
      @Override
      public BatchWrite toBatch() {
        return batch;
      }
    };
    return new WriteBuilder() {
      @Override
      public Write build() {
        return write;
      }
    };
  }

  private static final class RowScan implements ScanBuilder, SupportsPushDownRequiredColumns, Scan, Batch {
    private final Version version;
    private final StructType schema;
    private StructType wanted;

    RowScan(Version version, StructType schema) {
      this.version = version;
      this.schema = schema;
      this.wanted = schema;
    }

    @Override
    public void pruneColumns(StructType required) {
      wanted = required;
    }

    @Override
    public Scan build() {
      return this;
    }

    @Override
    public StructType readSchema() {
      return wanted;
    }

    @Override
    public Batch toBatch() {
      return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
      List<byte[]> rows = version.rows();
      List<InternalRow> found = new ArrayList<>();
      for (int number = 0; number < rows.size(); number++) {
        InternalRow row = version.decode(rows.get(number));
        Object[] values = new Object[wanted.size()];
        for (int at = 0; at < values.length; at++) {
          String column = wanted.fields()[at].name();
          if (column.equals(ROW)) {
            values[at] = (long) number;
          } else {
            int index = schema.fieldIndex(column);
            values[at] = row.isNullAt(index) ? null : row.get(index, schema.fields()[index].dataType());
          }
        }
        found.add(new GenericInternalRow(values));
      }
      return new InputPartition[] {new Piece(found)};
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new Pieces();
    }
  }

  private static final class Piece implements InputPartition {
    final List<InternalRow> rows;

    Piece(List<InternalRow> rows) {
      this.rows = rows;
    }
  }

  private static final class Pieces implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      Iterator<InternalRow> rows = ((Piece) partition).rows.iterator();
      return new PartitionReader<>() {
        private InternalRow row;

        @Override
        public boolean next() {
          row = rows.hasNext() ? rows.next() : null;
          return row != null;
        }

        @Override
        public InternalRow get() {
          return row;
        }

        @Override
        public void close() {}
      };
    }
  }

  /** What a task has written: rows to add, and the numbers of rows to remove. It is a file, as with a lake format. */
  private static final class Task {
    final List<byte[]> added = new ArrayList<>();
    final List<Long> removed = new ArrayList<>();

    void save(Path file) throws IOException {
      Path part = Files.createTempFile(file.getParent(), "part", "");
      try (DataOutputStream out = new DataOutputStream(Files.newOutputStream(part))) {
        write(out, added);
        out.writeInt(removed.size());
        for (long number : removed) {
          out.writeLong(number);
        }
      }
      Files.move(part, file, StandardCopyOption.ATOMIC_MOVE);
    }

    static Task load(Path file) {
      Task task = new Task();
      try (DataInputStream in = new DataInputStream(Files.newInputStream(file))) {
        task.added.addAll(read(in));
        for (int left = in.readInt(); left > 0; left--) {
          task.removed.add(in.readLong());
        }
        Files.delete(file);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      return task;
    }
  }

  /** The rows of a version, changed by those of the tasks, are the next version. */
  private static final class Changes implements DeltaBatchWrite {
    private final StructType schema;
    private final Version version;
    private final boolean keeps;
    private final String id = UUID.randomUUID().toString();

    Changes(StructType schema, Version version, boolean keeps) {
      this.schema = schema;
      this.version = version;
      this.keeps = keeps;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new Writers(schema, version.folder.toString(), id);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      List<byte[]> rows = keeps ? version.rows() : new ArrayList<>();
      List<byte[]> added = new ArrayList<>();
      for (int partition = 0; partition < messages.length; partition++) {
        Task task = Task.load(version.folder.resolve(id + "-" + partition));
        task.removed.forEach(number -> rows.set(number.intValue(), null));
        added.addAll(task.added);
      }
      rows.removeIf(row -> row == null);
      rows.addAll(added);
      version.replace(rows);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {}
  }

  private static final class Writers implements DeltaWriterFactory {
    private final StructType schema;
    private final String folder;
    private final String id;

    Writers(StructType schema, String folder, String id) {
      this.schema = schema;
      this.folder = folder;
      this.id = id;
    }

    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long attempt) {
      UnsafeProjection encode = UnsafeProjection.create(schema);
      Task task = new Task();
      return new DeltaWriter<>() {
        @Override
        public void insert(InternalRow row) {
          task.added.add(encode.apply(row).getBytes());
        }

        @Override
        public void delete(InternalRow metadata, InternalRow row) {
          task.removed.add(row.getLong(0));
        }

        @Override
        public void update(InternalRow metadata, InternalRow row, InternalRow changed) {
          delete(metadata, row);
          insert(changed);
        }

        @Override
        public WriterCommitMessage commit() throws IOException {
          task.save(Path.of(folder, id + "-" + partition));
          return null; // the driver knows where to look
        }

        @Override
        public void abort() {}

        @Override
        public void close() {}
      };
    }
  }

  private static void write(DataOutputStream out, List<byte[]> rows) throws IOException {
    out.writeInt(rows.size());
    for (byte[] row : rows) {
      out.writeInt(row.length);
      out.write(row);
    }
  }

  private static List<byte[]> read(DataInputStream in) throws IOException {
    List<byte[]> rows = new ArrayList<>();
    for (int left = in.readInt(); left > 0; left--) {
      rows.add(in.readNBytes(in.readInt()));
    }
    return rows;
  }
}
