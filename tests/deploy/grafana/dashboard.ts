// The forms of a dashboard by Grafana's own types. A file of the test follows this with the dashboard as a literal: in a
// literal TypeScript refuses each key that the types do not have.
import type { Dashboard, FieldConfig, Panel, RowPanel } from 'SCHEMA/dashboard/x/types.gen';
import type { Options as Stat } from 'SCHEMA/composable/stat/panelcfg/x/types.gen';
import type { FieldConfig as Lines, Options as Series } from 'SCHEMA/composable/timeseries/panelcfg/x/types.gen';

// What is left out has a default. Values of an enum are written as text in JSON.
type Given<T> = T extends (infer U)[] ? Given<U>[] : T extends object ? { [K in keyof T]?: Given<T[K]> }
  : T extends string ? (string extends T ? T : `${T}`) : T;
type Query = { refId: string, expr: string, legendFormat?: string, format?: 'time_series' | 'table' | 'heatmap',
  instant?: boolean, range?: boolean, datasource: { type: 'prometheus', uid: string } };
type Of<Type, Options, Custom> = Given<Omit<Panel, 'type' | 'options' | 'targets' | 'fieldConfig'>> & {
  type: Type, title: string, options: Given<Options>, targets: Query[],
  fieldConfig: { defaults: Given<Omit<FieldConfig, 'custom'>> & { custom?: Given<Custom> },
    overrides: { matcher: { id: string, options?: unknown }, properties: { id: string, value?: unknown }[] }[] },
};
type Row = Given<RowPanel> & { type: 'row' };

export const dashboard: Given<Omit<Dashboard, 'id' | 'panels'>> & {
  id: null, panels: (Of<'stat', Stat, object> | Of<'timeseries', Series, Lines> | Row)[]
} =
